package cuda

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// A restored process whose memory is still being given back is dumped at once, and restored from that.
func TestDumpWhileMemoryIsGivenBack(t *testing.T) {
	r := start(t, cudasim.Options{MiB: 1024})
	r.ok("dump", r.store, "first", "-t", r.pid())
	r.gone()
	for range 2 {
		r.restored("first")
		r.ok("dump", r.store, "again", "-t", r.pid(), "--leave-running")
		r.verify()
		must(t, r.app.Kill())
		r.gone()
		r.restored("again")
		r.verify()
		must(t, r.app.Kill())
		r.gone()
		r.ok("rm", r.store, "again", "-y")
	}
}

// The memory that VRAM was saved in has asked for huge pages. It is not joined into some while the driver reads it.
func TestDriversMemoryIsNotJoined(t *testing.T) {
	const mib, stall = 256, 3 * time.Second
	r := start(t, cudasim.Options{MiB: mib})
	if _, err := r.app.Say(0, fmt.Sprintf("stall restore %d", stall.Milliseconds()), timeout); err != nil {
		t.Fatal(err)
	}
	r.ok("dump", r.store, "one", "-t", r.pid())
	r.gone()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.restored("one")
	}()
	filled, most := 0, 0
	for going := true; going; {
		select {
		case <-done:
			going = false
		case <-time.After(20 * time.Millisecond):
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", r.app.PID))
		for line := range strings.Lines(string(text)) {
			var kib int
			if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &kib); n == 1 {
				filled = max(filled, kib>>10)
			}
			if n, _ := fmt.Sscanf(line, "AnonHugePages: %d kB", &kib); n == 1 {
				most = max(most, kib>>10)
			}
		}
	}
	if filled < mib || most > mib/8 {
		t.Errorf("%d MiB were there before the driver had read them, %d of them in huge pages", filled, most)
	}
	r.verify()
}
