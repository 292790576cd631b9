package lazy

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

func TestQuietProcess(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 2, Seed: 1, Quiet: true})
	for range 3 {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, nil)
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

func TestStress(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 96, Threads: 4, Seed: 2})
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, nil)
		must(t, c.restore(t, work))
		must(t, c.Beats(300, time.Minute))
		must(t, s.wait(time.Minute))
		must(t, c.Stop(time.Minute))
		t.Logf("%s; %+v", c, s.Report())
	}
}
