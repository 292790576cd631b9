package fs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = 3
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	restored := make(chan error)
	go func() {
		time.Sleep(50 * time.Millisecond)
		restored <- unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}()
	err = stats.Close()
	must(t, <-restored)
	must(t, err)
	if _, err := s.Checkpoint("A"); err != nil {
		t.Errorf("the dump is not sealed: %v", err)
	}
}
