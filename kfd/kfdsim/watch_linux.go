package kfdsim

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher calls exited, on its own goroutine, once for every watched process
// when it ends: the moment the driver would see its address space go.
type watcher struct {
	epfd   int
	stop   int // eventfd
	exited func(pid int)
	wg     sync.WaitGroup

	mu     sync.Mutex
	pidfds map[int32]int // pidfd → pid
}

func newWatcher(exited func(pid int)) (*watcher, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &watcher{epfd: epfd, stop: stop, exited: exited, pidfds: map[int32]int{}}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, stop,
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(stop)}); err != nil {
		unix.Close(epfd)
		unix.Close(stop)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	w.wg.Add(1)
	go w.run()
	return w, nil
}

func (w *watcher) add(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	w.mu.Lock()
	w.pidfds[int32(fd)] = pid
	w.mu.Unlock()
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		w.forget(int32(fd))
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

// forget watches a process no more. Its pidfd is taken out of the epoll first: a close alone leaves it there as long as
// a child that is just being started has a copy, and what it then tells would close somebody else's descriptor.
func (w *watcher) forget(fd int32) (pid int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pid, ok = w.pidfds[fd]; ok {
		delete(w.pidfds, fd)
		_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, int(fd), nil)
		unix.Close(int(fd))
	}
	return pid, ok
}

func (w *watcher) run() {
	defer w.wg.Done()
	events := make([]unix.EpollEvent, 16)
	for {
		n, err := unix.EpollWait(w.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if e.Fd == int32(w.stop) {
				return
			}
			if pid, ok := w.forget(e.Fd); ok {
				w.exited(pid)
			}
		}
	}
}

func (w *watcher) close() {
	var one [8]byte
	one[0] = 1
	unix.Write(w.stop, one[:]) // an eventfd takes it
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.pidfds {
		unix.Close(int(fd))
	}
	unix.Close(w.epfd)
	unix.Close(w.stop)
}
