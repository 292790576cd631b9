package helper

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process whose queues are paused is not gone because nobody could look for it: they would stay paused, and nobody
// would be told.
func TestOwnerUnseen(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end := descriptors.Lack(t)
	_, err = owner(f)
	all := (&dump{paused: []*os.File{f}}).unpauseAll()
	end()
	if !errors.Is(err, unix.EMFILE) || !errors.Is(all, unix.EMFILE) {
		t.Errorf("it is gone: %v; %v", err, all)
	}
}
