package kfdsim

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// threads keeps pidfds of the threads that have named descriptors last. The driver looks a descriptor up in the table
// of its caller; here that takes a pidfd, and to open and close one for each request took more than all else of an
// import.
type threads struct {
	mu   sync.Mutex
	last []thread // the latest comes last
}

type thread struct {
	tid, pidfd int
}

// keepThreads bounds the pidfds.
const keepThreads = 16

// getFD duplicates a descriptor of a thread.
func (t *threads) getFD(tid, fd int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, th := range t.last {
		if th.tid != tid {
			continue
		}
		dup, err := unix.PidfdGetfd(th.pidfd, fd, 0)
		if !errors.Is(err, unix.ESRCH) {
			return dup, named(tid, fd, err)
		}
		// It has ended; another thread may have its number.
		unix.Close(th.pidfd)
		t.last = append(t.last[:i], t.last[i+1:]...)
		break
	}
	pidfd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if err != nil {
		return -1, fmt.Errorf("pidfd of thread %d: %w", tid, err)
	}
	if len(t.last) == keepThreads {
		unix.Close(t.last[0].pidfd)
		t.last = append(t.last[:0], t.last[1:]...)
	}
	t.last = append(t.last, thread{tid, pidfd})
	dup, err := unix.PidfdGetfd(pidfd, fd, 0)
	return dup, named(tid, fd, err)
}

func named(tid, fd int, err error) error {
	if err != nil {
		return fmt.Errorf("descriptor %d of thread %d: %w", fd, tid, err)
	}
	return nil
}

// close closes the pidfds.
func (t *threads) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, th := range t.last {
		unix.Close(th.pidfd)
	}
	t.last = nil
}
