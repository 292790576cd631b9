//go:build amd64

package inject

import (
	"errors"
	"os"
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

// Nor have the kernel's threads that worked for its rings ended.
func TestWorkersUnseen(t *testing.T) {
	p := start(t, 1)
	end := descriptors.Lack(t)
	unseen := Workers(p.pid)
	_, err := worker(p.pid, p.pid)
	end()
	if !unseen || !errors.Is(err, unix.EMFILE) {
		t.Errorf("workers that cannot be seen: %v, %v", unseen, err)
	}
	if Workers(p.pid) || Workers(1<<30) {
		t.Error("it has workers")
	}
}

// A thread whose name looks like the end of its name in stat has not ended.
func TestNamedLikeZombie(t *testing.T) {
	const own = "/proc/self/comm"
	before, err := os.ReadFile(own)
	if err == nil {
		err = os.WriteFile(own, []byte("x) Z"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(own, before, 0)
	if ended(os.Getpid(), os.Getpid()) {
		t.Error("it has ended")
	}
}
