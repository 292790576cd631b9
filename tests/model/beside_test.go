package model

import (
	"bytes"
	"errors"
	"runtime"
	"time"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// beside is a step that runs while another is held up at a storage call. It runs to its end if it can: at the same
// point whenever the program is run again. If it waits for a lock that the other holds, both go on, and it takes its
// turn.
type beside struct {
	op   *op
	seen int // calls that count for its At
	done chan struct{}
	id   []byte // of its goroutine, as a dump of stacks has it
	err  error  // valid once done is closed
}

// due gives those that are to begin at a call. Call with mu held.
func (w *watch) due(c storage.Call) (begin []*beside) {
	var rest []*beside
	for _, b := range w.besides {
		counts := b.op.On == "" || b.op.On == string(c.Op)
		if counts && b.seen >= b.op.At {
			begin = append(begin, b)
			continue
		}
		if counts {
			b.seen++
		}
		rest = append(rest, b)
	}
	w.besides = rest
	return begin
}

// begin runs b, and returns when it is done or held up.
func (w *world) begin(b *beside) {
	begun := make(chan struct{})
	go func() {
		defer close(b.done)
		b.id = self()
		close(begun)
		b.err = w.run(b.op)
	}()
	<-begun
	// One who waits for a lock is held up. One who waits for a worker may be: the worker may wait for a lock.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for timeout := 10; timeout > 0; {
		select {
		case <-b.done:
			return
		case <-tick.C:
		}
		switch waitsFor(b.id) {
		case aLock:
			timeout -= 5
		case aWorker:
			timeout -= 2
		default:
			timeout = 10
		}
	}
}

// finish begins what the step was too short for, and waits for all.
func (w *world) finish(all []*beside) error {
	w.mu.Lock()
	rest := w.watch.besides
	w.watch.besides = nil
	w.mu.Unlock()
	for _, b := range rest {
		w.begin(b)
	}
	var errs []error
	for _, b := range all {
		<-b.done
		errs = append(errs, b.err)
	}
	return errors.Join(errs...)
}

// self gives the head of the caller's stack up to its state: "goroutine 12 [".
func self() []byte {
	buf := make([]byte, 64)
	buf = buf[:runtime.Stack(buf, false)]
	return append([]byte{}, buf[:bytes.IndexByte(buf, '[')+1]...)
}

type waiting int

const (
	nothing waiting = iota
	aLock
	aWorker
)

// waitsFor tells from its stack what a goroutine waits for.
func waitsFor(id []byte) waiting {
	buf := make([]byte, 1<<20)
	_, rest, _ := bytes.Cut(buf[:runtime.Stack(buf, true)], append([]byte("\n"), id...))
	state, _, _ := bytes.Cut(rest, []byte("]"))
	state, _, _ = bytes.Cut(state, []byte(","))
	switch string(state) {
	case "sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock":
		return aLock
	case "chan receive", "chan send", "select", "semacquire", "sync.WaitGroup.Wait", "sync.Cond.Wait":
		return aWorker
	}
	return nothing
}
