package preflight

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process that cannot be looked at is not one that has ended: it may be what keeps the tree from being dumped.
func TestTreeUnseen(t *testing.T) {
	proc, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	end := descriptors.Lack(t)
	_, err = treeOf(t.Context(), proc, os.Getpid())
	end()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("the tree: %v", err)
	}
}
