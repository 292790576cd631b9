// Package descriptors takes the file descriptors from a test's own process for a while.
package descriptors

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Lack has all calls of this process fail with EMFILE that need a new file descriptor, until end is called, at the
// latest when the test ends. Those that are open stay. Tests that run beside it would suffer as well.
func Lack(t testing.TB) (end func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}
