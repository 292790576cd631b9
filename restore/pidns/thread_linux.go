package pidns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is an OS thread that does what it is given and nothing else, and ends with close.
type thread struct {
	calls chan func()
	ended chan struct{}
}

func newThread() *thread {
	t := &thread{calls: make(chan func()), ended: make(chan struct{})}
	begun := make(chan struct{})
	go t.run(begun)
	<-begun
	return t
}

// run never unlocks its thread, so that the thread ends with it. The process's first one cannot be had: it does
// not end, and /proc shows its namespaces as the process's.
func (t *thread) run(begun chan struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		go t.run(begun)
		<-begun // until then this thread is not free
		runtime.UnlockOSThread()
		return
	}
	close(begun)
	defer close(t.ended)
	for f := range t.calls {
		f()
	}
}

// do calls f on the thread.
func (t *thread) do(f func() error) (err error) {
	done := make(chan struct{})
	t.calls <- func() {
		defer close(done)
		err = f()
	}
	<-done
	return err
}

func (t *thread) close() {
	close(t.calls)
	<-t.ended
}
