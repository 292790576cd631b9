package helper

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// watched is a process whose end is waited for.
type watched struct {
	pidfd *os.File      // nil when it had ended before
	ended chan struct{} // the process has ended, or the watch
}

// watch calls f once when the process of a pidfd has ended, or at once where there
// is none. It takes the pidfd over.
func watch(pidfd *os.File, f func()) (*watched, error) {
	w := &watched{pidfd, make(chan struct{})}
	if pidfd == nil {
		close(w.ended)
		f()
		return w, nil
	}
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		w.pidfd.Close()
		return nil, err
	}
	go func() {
		defer close(w.ended)
		if raw.Read(pidfdEnded) == nil {
			f()
		}
	}()
	return w, nil
}

// gone reports whether the process has ended: its pid may be another's then.
func (w *watched) gone() bool {
	if w.pidfd == nil {
		return true
	}
	ended := true
	raw, err := w.pidfd.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ended = pidfdEnded(fd) })
	}
	return err != nil || ended
}

func pidfdEnded(fd uintptr) bool {
	events, err := procfs.Readable(int(fd))
	return err == nil && events != 0
}

// stop ends the watch.
func (w *watched) stop() {
	if w.pidfd == nil {
		return
	}
	w.pidfd.SetReadDeadline(time.Unix(1, 0))
	<-w.ended
	w.pidfd.Close()
}

// kill ends the process and waits a while until it is gone.
func (w *watched) kill() error {
	if w.pidfd == nil {
		return nil
	}
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var errno error
	send := func(fd uintptr) { errno = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }
	if err := raw.Control(send); err != nil {
		return err
	}
	if errno != nil && errno != unix.ESRCH {
		return errno
	}
	select {
	case <-w.ended:
	case <-time.After(10 * time.Second):
	}
	return nil
}
