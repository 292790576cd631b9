package lazy

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// Memory that forks and faults treat in a way of its own is what the kernel promises,
// while it is filled and afterwards: guard pages, memory that children do not get or
// get empty, memory that may be dropped, that is locked, sealed, merged.
func TestKindsOfMemory(t *testing.T) {
	bin, err := lazytarget.BuildKinds(t.TempDir())
	must(t, err)
	c := dumpProgram(t, bin, lazytarget.Options{Quiet: true})
	for name, rate := range map[string]int64{"missing": 2 << 20, "filled meanwhile": 64 << 20, "filled at once": 0} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(c.Kill)
			c.Reset()
			work := t.TempDir()
			s := c.serve(t, work, serveOptions{rate: rate})
			must(t, c.restore(t, work))
			for _, what := range lazytarget.Scenarios {
				if err := c.Check(1, time.Minute); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			must(t, s.wait(2*time.Minute))
			must(t, c.Check(1, time.Minute))
		})
	}
}
