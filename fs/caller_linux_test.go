package fs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A dump is sealed when CRIU ends it, also where this process has no descriptor left at that moment to see who that is.
func TestDumpIsSealedWithoutDescriptors(t *testing.T) {
	runtime.LockOSThread() // and the thread, which is CRIU from now on, ends with the test
	name, err := unix.BytePtrFromString("criu")
	must(t, err)
	must(t, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0))
	s := newStore(t)
	srv := mounted(t, s, Options{New: "A"})
	write(t, filepath.Join(srv.Dir(), "pages-1.img"), []byte("pages"))
	write(t, filepath.Join(srv.Dir(), "inventory.img"), []byte("inventory"))
	stats, err := os.Create(filepath.Join(srv.Dir(), "stats-dump"))
	must(t, err)
	_, err = stats.Write([]byte("stats"))
	must(t, err)
	time.AfterFunc(50*time.Millisecond, descriptors.Lack(t))
	must(t, stats.Close())
	if _, err := s.Checkpoint("A"); err != nil {
		t.Errorf("the dump is not sealed: %v", err)
	}
}
