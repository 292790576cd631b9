package restore

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The log that criu is told to write is where the user expects it: beside him, when it has no other place. A private
// work directory goes with the restore.
func TestCRIUsLogStays(t *testing.T) {
	b := newBench(t)
	x := b.start("one", quiet)
	t.Chdir(t.TempDir())
	b.run("dump", b.store, "one", "-t", strconv.Itoa(x.pid), "--", "-o", "dump.log", "-v2")
	must(t, x.Dumped())
	x.mustRestore("--wait", "--", "-o", "restore.log", "-v2", "--pidfile", "restore.pid")
	x.checks()
	for _, name := range []string{"dump.log", "restore.log", "restore.pid"} {
		if st, err := os.Stat(name); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	work := t.TempDir()
	x.mustRestore("--wait", "--", "-o", "restore.log", "-v2", "-W", work)
	x.checks()
	if st, err := os.Stat(filepath.Join(work, "restore.log")); err != nil || st.Size() == 0 {
		t.Errorf("the log in the work directory: %v", err)
	}
	if err := unix.Access(filepath.Join(work, "stats-restore"), unix.R_OK); err != nil {
		t.Errorf("criu's statistics: %v", err)
	}
}
