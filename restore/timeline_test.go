package restore

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTimeline(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	l := Timeline{Checkpoint: "a<b&c", PID: 7, Started: begin, Profile: true,
		Bytes: Sources{Images: 1 << 20, Demand: 2 << 20, Hot: 3 << 20, Sweep: 4 << 20}}
	l.Add(Mark{Name: MarkResident, At: at(300)}, Mark{Name: MarkHotDone}, Mark{Name: MarkResume, At: at(100)})
	l.Add(Mark{Name: MarkPrepared, At: at(20)})
	if len(l.Marks) != 3 || l.Marks[0].Name != MarkPrepared || l.Marks[2].Name != MarkResident {
		t.Errorf("marks: %+v", l.Marks)
	}
	if d, ok := l.At(MarkResume); !ok || d != 100*time.Millisecond {
		t.Errorf("resume at %v, %v", d, ok)
	}
	if _, ok := l.At(MarkHotDone); ok {
		t.Error("a moment that has not come is there")
	}
	for _, name := range []string{"x", "x.svg", "x.json"} {
		dir := t.TempDir()
		if err := l.Write(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "x.json"))
		var back Timeline
		if err = errors.Join(err, json.Unmarshal(text, &back)); err != nil || len(back.Marks) != 3 ||
			back.Bytes != l.Bytes {
			t.Errorf("%s: %v: %s", name, err, text)
		}
		picture, err := os.ReadFile(filepath.Join(dir, "x.svg"))
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("the picture is no XML: %v\n%s", err, picture)
			}
		}
	}
	if err := l.Write(".svg"); err == nil {
		t.Error("a name without a stem was taken")
	}
	// A timeline without any moment can be drawn.
	if n := len((&Timeline{}).SVG()); n == 0 {
		t.Error("no picture")
	}
}
