package lazy

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

func TestQuietProcess(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 2, Seed: 1, Quiet: true})
	for range 3 {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, serveOptions{})
		start := time.Now()
		must(t, c.restore(t, work))
		resume := time.Since(start)
		must(t, c.Check(2, time.Minute))
		must(t, s.wait(time.Minute))
		must(t, c.Check(2, time.Minute))
		t.Logf("resumed after %v, %s; %+v", resume, c, s.Report())
		c.Kill()
	}
}

// What a first restore touches comes first in the next one, before the process
// asks for it.
func TestProfile(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 256, Threads: 1, Seed: 11, Quiet: true})
	const slow = 20 << 20
	var p *prefetch.Profile
	restore := func(o serveOptions) (faults int64, hot time.Duration) {
		t.Helper()
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, o)
		must(t, c.restore(t, work))
		if o.profile != nil {
			must(t, poll(time.Minute, s.queue.HotDone))
		}
		start := time.Now()
		// The hot set is a twentieth of the memory.
		must(t, c.CheckHot(time.Minute))
		hot = time.Since(start)
		faults = s.Report().Faults
		if o.recorder != nil {
			p = o.recorder.Profile()
		}
		must(t, c.Check(1, time.Minute))
		c.Kill()
		must(t, s.wait(time.Minute))
		return faults, hot
	}
	before, first := restore(serveOptions{rate: slow, recorder: prefetch.NewRecorder()})
	stored, err := prefetch.DecodeProfile(p.Encode())
	must(t, err)
	after, second := restore(serveOptions{rate: 1 << 30, profile: stored})
	t.Logf("hot set after %v with %d faults; with a profile of %d ranges, %d bytes after %v with %d faults",
		first, before, len(p.Touches), p.Bytes(), second, after)
	if after > before/2 {
		t.Errorf("%d faults with a profile, %d without", after, before)
	}
}

// Who reads the command line and the environment of a restored process gets them at once, not when all memory before
// the stack's end is there: the kernel does not wait for a missing page there, it gives less.
func TestTitlesComeFirst(t *testing.T) {
	long := strings.Repeat("long ", 20<<10) // its end is far from all that the process itself asks for
	t.Setenv("LONG", long)
	c := dump(t, lazytarget.Options{MB: 64, Threads: 2, Quiet: true, Seed: 11})
	work := t.TempDir()
	s := c.serve(t, work, serveOptions{rate: 2 << 20})
	must(t, c.restore(t, work))
	read := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", c.pid, name))
		must(t, err)
		return string(b)
	}
	late := time.Now().Add(5 * time.Second)
	for !strings.Contains(read("environ"), "LONG="+long+"\x00") {
		if time.Now().After(late) {
			t.Fatalf("only %d bytes of the environment are there", len(read("environ")))
		}
		time.Sleep(time.Millisecond)
	}
	if line := read("cmdline"); !strings.HasPrefix(line, targetBin+"\x00") {
		t.Errorf("the command line is %q", line)
	}
	if s.Report().MissingBytes == 0 {
		t.Error("all memory was there meanwhile: the test shows nothing")
	}
}

// Memory for which the process had asked for huge pages has some again.
func TestHugePages(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 256, Threads: 1, Seed: 15, Quiet: true})
	c.Reset()
	work := t.TempDir()
	s := c.serve(t, work, serveOptions{})
	must(t, c.restore(t, work))
	must(t, s.wait(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.Collapse(ctx)
	must(t, c.Check(1, time.Minute))
	r := s.Report()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", c.PID))
	must(t, err)
	var kb int64
	for line := range strings.Lines(string(b)) {
		fmt.Sscanf(line, "AnonHugePages: %d kB", &kb)
	}
	t.Logf("%d MiB collapsed in %v, %d MiB in huge pages", r.HugeBytes>>20, time.Since(r.Resident), kb>>10)
	if kb == 0 || r.HugeBytes == 0 {
		t.Errorf("no huge page; %+v", r)
	}
}

// Buffers much smaller than the memory to be filled are enough.
func TestSmallMemory(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 96, Threads: 2, Seed: 12, Quiet: true})
	c.Reset()
	work := t.TempDir()
	s := c.serve(t, work, serveOptions{memory: 1 << 20})
	must(t, c.restore(t, work))
	must(t, s.wait(time.Minute))
	must(t, c.Check(2, time.Minute))
}

// stressTime is how long TestStress goes on.
var stressTime = flag.Duration("stress.time", 60*time.Second, "how long the stress target is restored and checked")

// TestStress restores a process that changes its memory all the time, while it
// is filled at various speeds, and that checks every page it owns.
func TestStress(t *testing.T) {
	var sum uffd.Report
	var pages uint64
	c := dump(t, lazytarget.Options{MB: 96, Threads: 4, Seed: 2})
	rates := []int64{4 << 20, 0, 20 << 20, 1 << 20}
	n := 0
	for end := time.Now().Add(*stressTime); time.Now().Before(end); n++ {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, serveOptions{rate: rates[n%len(rates)]})
		must(t, c.restore(t, work))
		for quit := time.After(10 * time.Second); ; {
			must(t, c.Beats(100, time.Minute))
			select {
			case <-s.done:
			case <-quit:
			default:
				continue
			}
			break
		}
		must(t, c.Stop(time.Minute))
		must(t, s.wait(time.Minute))
		r := s.Report()
		if r.PoisonedBytes != 0 || len(r.Killed) != 0 || c.SIGBUS() != 0 {
			t.Errorf("%s; %+v", c, r)
		}
		sum.Faults += r.Faults
		sum.Events += r.Events
		pages += c.Checked()
	}
	t.Logf("%d restores, %d pages compared, %d faults, %d events", n, pages, sum.Faults, sum.Events)
	if sum.Events < 100 {
		t.Errorf("only %d events: the target was filled before it did anything", sum.Events)
	}
}
