package inject

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process whose threads cannot be listed is not one that has ended, of which nothing is to be taken any more.
func TestStopUnseen(t *testing.T) {
	p := start(t, 2)
	task := &Task{PID: p.pid, end: time.Now().Add(timeout)}
	end := descriptors.Lack(t)
	err := task.stop()
	gone := ended(p.pid, p.pid)
	end()
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrGone) || gone {
		t.Errorf("it has ended: %v, %v", gone, err)
	}
	p.goesOn()
}
