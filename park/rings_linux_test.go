//go:build amd64

package park

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// newRing makes a ring of this process.
func newRing(t *testing.T) *os.File {
	t.Helper()
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		t.Fatalf("make a ring (sysctl kernel.io_uring_disabled=0): %v", errno)
	}
	f := os.NewFile(fd, "ring")
	t.Cleanup(func() { f.Close() })
	unix.CloseOnExec(int(fd))
	return f
}

// A ring that another process has, too, is not parked: not if that has two descriptors of it, either.
func TestSharedRing(t *testing.T) {
	ring := newRing(t)
	mine, _, err := ringDescriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := unshared(os.Getpid(), mine, nil); err != nil {
		t.Fatalf("nobody has it: %v", err)
	}
	for n := 1; n <= 2; n++ {
		other := exec.Command("sleep", "600")
		other.ExtraFiles = slices.Repeat([]*os.File{ring}, n)
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		err := unshared(os.Getpid(), mine, nil)
		other.Process.Kill()
		other.Wait()
		if err == nil || !strings.Contains(err.Error(), "the same ring open") {
			t.Errorf("another process has %d descriptors of it: %v", n, err)
		}
	}
}

// Without descriptors, nobody is known to have a ring or to have none.
func TestSharedRingUnseen(t *testing.T) {
	defer descriptors.Lack(t)()
	if _, err := opens(os.Getppid(), func(uint64) bool { return false }); !errors.Is(err, unix.EMFILE) {
		t.Errorf("it has none: %v", err)
	}
}
