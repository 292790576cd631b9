package feed

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
)

func TestHotSetIsKeptAndFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(t.Context(), dir, index.Options{FreeFloor: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Create(t.Context(), "c", index.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	w, err := d.Create("pages-1.img", 0o644)
	if err == nil {
		_, err = w.WriteAt(content, 0)
		err = errors.Join(err, w.Close())
	}
	if err == nil {
		_, err = d.Seal(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Images: Stored{s, "c"}, Logger: slog.New(slog.DiscardHandler), Profile: &prefetch.Profile{
		Files: []string{"pages-1.img", "core-1.img"}, Touches: []prefetch.Range{{File: 1, Len: 4096},
			{File: 0, Off: 5 << 20, Len: 64 << 10}, {File: 0, Off: 1 << 20, Len: 4096}},
	}}
	names := []string{"pages-1.img"}
	f := &Feed{opts: o, names: names}
	if p, _ := openHot(o, names); p != nil {
		t.Error("there is a hot set before one was kept")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := f.KeepHot(ended); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("kept %d bytes after the end: %v", n, err)
	}
	if n, err := f.KeepHot(t.Context()); err != nil || n < 68<<10 {
		t.Fatalf("kept %d bytes, %v", n, err)
	}
	p, _ := openHot(o, names)
	if p == nil || p.Bytes() != 68<<10 {
		t.Fatalf("found %v", p)
	}
	defer p.Close()
	if n, err := (&Feed{opts: o, names: names, packed: p}).KeepHot(t.Context()); err != nil || n != 0 {
		t.Errorf("kept %d bytes again, %v", n, err)
	}
	// A damaged one is as good as none.
	hot, err := filepath.Glob(filepath.Join(dir, "hot", "*"))
	if err != nil || len(hot) != 1 {
		t.Fatalf("%v, %v", hot, err)
	}
	if err := os.Truncate(hot[0], 1000); err != nil {
		t.Fatal(err)
	}
	if p, _ := openHot(o, names); p != nil {
		t.Error("a damaged hot set is used")
	}
	if err := s.SetProfile("c", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(hot[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the hot set outlives its profile: %v", err)
	}
}
