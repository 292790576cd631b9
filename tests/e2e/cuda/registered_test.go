package cuda

import (
	"testing"

	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// Memory that a program has registered with the driver has to be there when it gets its GPU back: the restore sees that
// it was not, and begins anew with all memory first.
func TestRegisteredMemory(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, Registered: 32})
	r.ok("dump", r.store, "first", "-t", r.pid(), "--leave-running")
	r.verify()
	r.ok("dump", r.store, "last", "-t", r.pid())
	r.gone()
	for _, rate := range []string{"--prefetch-rate=1MiB", "--prefetch-rate=1GiB"} {
		// Without --wait: at the lower rate the rest takes half a minute.
		r.ok("restore", r.store, "last", rate)
		r.verify()
		must(t, r.app.Kill())
	}
}
