package restore

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// A process with guard pages, memory that children do not get or get empty, and memory that may be dropped, is locked,
// sealed or merged, can be restored, says check, and then is: on demand from the store, and by criu from a mount with
// lazy-pages.
func TestKindsOfMemory(t *testing.T) {
	b := newBench(t)
	bin, err := lazytarget.BuildKinds(t.TempDir())
	must(t, err)
	x := b.startProgram(bin, "kinds", lazytarget.Options{Quiet: true})
	b.run("dump", b.store, "kinds", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	if out := b.run("check", b.store, "kinds"); !strings.Contains(out, "can be restored on this host") {
		t.Error(out)
	}
	scenarios := func() {
		t.Helper()
		for _, what := range lazytarget.Scenarios {
			if err := x.Check(1, limit); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for range 2 { // without a profile, and with one
		x.mustRestore("--prefetch-rate", "8MiB")
		scenarios()
		must(t, quietly(b))
		x.checks()
	}
	mnt, work := t.TempDir(), t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	images := filepath.Join(mnt, ".checkpoints", "kinds")
	x.Reset()
	b.run("lazy-pages", "-d", "-D", images, "-W", work, "--prefetch-rate", "8MiB")
	must(t, criu(t, work, "restore", "-D", images, "--lazy-pages", "-d"))
	x.Restored(x.pid)
	scenarios()
	x.checks()
	b.run("umount", mnt)
}
