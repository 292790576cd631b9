package uffd

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// zeroSupplier brings zeros, at once.
type zeroSupplier struct {
	Supplier
	s        *Server
	demanded chan prefetch.Range
}

func (z *zeroSupplier) Demand(r prefetch.Range, _ bool) {
	select {
	case z.demanded <- r:
	default:
	}
	go z.s.zero(r)
}

// While a fork waits for a descriptor its process is passed over, so that the others are served. What it was to get
// meanwhile is asked for again.
func TestLackLeavesOthersServed(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	s.supplier = &zeroSupplier{s: s, demanded: make(chan prefetch.Range, 1)}
	kick, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{srv: s, fd: fd, name: "x+", space: lackingAll(mem), wakeup: kick}
	pid := forked(t)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	got := make(chan bool, 1)
	go func() { got <- readsZeros(os.Getpid(), mem) }()
	release := descriptors.Lack(t)
	s.start(m)
	<-s.supplier.(*zeroSupplier).demanded // its page has come while it could not be filled in
	filled := make(chan struct{})
	go func() { s.zero(prefetch.Range{Len: 4 * pageSize}); close(filled) }()
	select {
	case <-filled:
	case <-time.After(2 * time.Second):
		t.Error("nobody is served while a fork waits for a descriptor")
	}
	if n := m.space.left.Load(); n != 4 {
		t.Errorf("%d pages are still to come, of 4 that could not be filled in", n)
	}
	release()
	child := <-pid
	select {
	case <-got:
	case <-time.After(5 * time.Second):
		t.Error("a page that came while the fork waited is not asked for again")
	}
	s.zero(prefetch.Range{Len: 4 * pageSize})
	<-filled
	bury(child)
	s.finished.Store(true)
	m.wakeup.set()
	s.runs.Wait()
}
