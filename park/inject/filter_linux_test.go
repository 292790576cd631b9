//go:build amd64

package inject

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A thread's seccomp filter is its own: the first thread's status does not show it.
func TestUnbearable(t *testing.T) {
	if why, err := Unbearable(os.Getpid()); err != nil || why != "" {
		t.Fatalf("without a filter: %q, %v", why, err)
	}
	filtered, over := make(chan error), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()                                                 // the thread ends with this goroutine
		all := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000} // SECCOMP_RET_ALLOW
		prog := unix.SockFprog{Len: 1, Filter: &all}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
		}
		filtered <- err
		<-over
	}()
	if err := <-filtered; err != nil {
		t.Fatal(err)
	}
	if why, err := Unbearable(os.Getpid()); err != nil || why == "" {
		t.Errorf("a thread's filter is overlooked: %v", err)
	}
	close(over)
	<-ended
}
