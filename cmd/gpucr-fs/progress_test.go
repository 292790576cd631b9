package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

func TestPace(t *testing.T) {
	begun := time.Now()
	at := func(s float64) time.Time { return begun.Add(time.Duration(s * float64(time.Second))) }
	mib := func(done, total int64) *wire.Progress {
		return &wire.Progress{Done: done << 20, Total: total << 20, Unit: "bytes"}
	}
	p := pace{begun: begun}
	for _, c := range []struct {
		report *wire.Progress
		after  float64
		want   string
	}{
		{nil, 3, "working for 3s"},
		{mib(100, 1000), 4, "100MiB of 1000MiB"}, // where another has come to
		{mib(200, 1000), 5, "200MiB of 1000MiB, 100MiB/s, 8s left"},
		{mib(1000, 1000), 13, "1000MiB of 1000MiB, 100MiB/s"},
		{mib(10, 40), 14, "10MiB of 40MiB"}, // the next of several things
		{mib(30, 40), 16, "30MiB of 40MiB, 10MiB/s, 1s left"},
		{mib(50, 40), 18, "50MiB of 50MiB, 10MiB/s"}, // more than was thought
	} {
		if c.report != nil {
			p.add(*c.report, at(c.after))
		}
		if got := p.text(at(c.after)); got != c.want {
			t.Errorf("after %v s: %q, want %q", c.after, got, c.want)
		}
	}
	idle := pace{begun: begun}
	idle.add(wire.Progress{Unit: "bytes"}, at(1))
	if got := idle.text(at(3)); got != "working for 3s" {
		t.Errorf("of nothing it says %q", got)
	}
	packs := pace{begun: begun}
	packs.add(wire.Progress{Total: 7, Unit: "packs"}, at(0))
	packs.add(wire.Progress{Done: 3, Total: 7, Unit: "packs"}, at(3))
	if got := packs.text(at(3)); got != "3 packs of 7 packs, 4s left" {
		t.Errorf("of packs it says %q", got)
	}
}

// Where there is no terminal there are lines, before the first report, too.
func TestProgressLines(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		a := &app{err: w, json: asJSON}
		b := a.progressEvery("verify", false, time.Millisecond)
		lines := bufio.NewScanner(r)
		seen := func(want string) {
			for lines.Scan() {
				if asJSON && !json.Valid(lines.Bytes()) {
					t.Errorf("not JSON: %s", lines.Text())
				}
				if strings.Contains(lines.Text(), want) {
					return
				}
			}
			t.Errorf("JSON %v: no line has %q", asJSON, want)
		}
		if asJSON {
			seen(`{"progress":{"done":0,`)
		} else {
			seen("gpucr-fs: verify: working for 0s")
		}
		b.tell(wire.Progress{Done: 1 << 20, Total: 2 << 20, Unit: "bytes"})
		if asJSON {
			seen(`"done":1048576,`)
		} else {
			seen("gpucr-fs: verify: 1.0MiB of 2.0MiB")
		}
		b.close()
		b.close()
		w.Close()
		r.Close()
	}
	quiet := &app{quiet: true}
	b := quiet.progressEvery("verify", false, time.Nanosecond)
	b.tell(wire.Progress{Done: 1})
	b.close()
}
