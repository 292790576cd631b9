package uffd

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// zeroFile has four pages of zeros.
type zeroFile struct{}

func (zeroFile) Size() int64                           { return 4 * pageSize }
func (zeroFile) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

func (zeroFile) Data(_, end int64) (start, stop int64, err error) { return end, end, nil }

// slowSink delivers to a server. Its first delivery is over only when the gate is opened.
type slowSink struct {
	*Server
	taken, gate chan struct{}
	first       bool
}

func (s *slowSink) Take(parts []prefetch.Part) {
	s.Server.Take(parts)
	if s.first {
		s.first = false
		close(s.taken)
		<-s.gate
	}
}

// A fork waits for a descriptor while a page is delivered that somebody waits for. When the fork has been read its
// memory is served again, also where that delivery is not over yet, which a second demand joins.
func TestDeliveryThatPassedByIsMadeAgain(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	kick, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{srv: s, fd: fd, name: "x+", space: lackingAll(mem), wakeup: kick}
	sink := &slowSink{Server: s, taken: make(chan struct{}), gate: make(chan struct{}), first: true}
	q, err := prefetch.New(prefetch.Options{Files: []prefetch.File{zeroFile{}}, Sink: sink, Workers: 1, Logger: s.log})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	s.supplier = q
	pid := forked(t)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	release := descriptors.Lack(t)
	s.start(m)
	for !m.lacking.Load() {
		time.Sleep(time.Millisecond)
	}
	got := make(chan bool, 1)
	go func() { got <- readsZeros(os.Getpid(), mem) }()
	<-sink.taken // and nothing was filled in
	release()
	child := <-pid
	for late := time.Now().Add(5 * time.Second); q.Stats().Joined == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Error("there is no second demand")
			break
		}
	}
	close(sink.gate)
	select {
	case ok := <-got:
		if !ok {
			t.Error("the page cannot be read")
		}
	case <-time.After(time.Minute):
		t.Error("who waits for the page waits for ever")
	}
	s.zero(prefetch.Range{Len: 4 * pageSize})
	bury(child)
	s.finished.Store(true)
	m.wakeup.set()
	s.runs.Wait()
}

// A report that could not be read is gone with its thread. The memory is served again.
func TestLackEndsWithoutAReport(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	s.supplier = &zeroSupplier{s: s, demanded: make(chan prefetch.Range, 1)}
	kick, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{srv: s, fd: fd, name: "x", task: &process{os.Getpid(), pidfdOf(t, os.Getpid())},
		space: lackingAll(mem), wakeup: kick}
	m.lacking.Store(true)
	s.start(m)
	got := make(chan bool, 1)
	go func() { got <- readsZeros(os.Getpid(), mem) }()
	select {
	case <-got:
	case <-time.After(time.Minute):
		t.Error("the memory is not served any more")
	}
	m.lacking.Store(false)
	s.zero(prefetch.Range{Len: 4 * pageSize})
	s.finished.Store(true)
	m.wakeup.set()
	s.runs.Wait()
}

// The last words of one that is killed while they are being taken arrive, too.
func TestKilledBetweenLookAndTake(t *testing.T) {
	ours, theirs := wirePair(t)
	if err := theirs.send(&packet{kind: kindLeft, id: 7}); err != nil {
		t.Fatal(err)
	}
	if err := ours.send(&packet{kind: kindStop}); err != nil {
		t.Fatal(err)
	}
	fds, err := ours.peekFDs()
	if err != nil {
		t.Fatal(err)
	}
	theirs.close()
	if p, err := ours.take(fds); err != nil || p.id != 7 {
		t.Errorf("packet %d, %v", p.id, err)
	}
}
