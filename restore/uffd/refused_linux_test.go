package uffd

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// A child that must not be served has what it lacks poisoned. It goes on with everything else, and is let go when the
// restore is finished.
func TestRefusedChild(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 4)
	at := addrOf(mem)
	own, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	// While a report is unread nothing can be poisoned.
	unmapped := make(chan bool, 2)
	unmap := func(page int) {
		unix.Syscall(unix.SYS_MUNMAP, uintptr(addrOf(mem[page*pageSize:])), pageSize, 0)
		unmapped <- true
	}
	go unmap(3)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	m := &memory{srv: s, fd: own, name: "x+", unsettled: true, refused: errors.New("not known"),
		space: newSpace(1, nil, []*piece{{start: at, end: at + 2*pageSize}})}
	if m.wakeup, err = newEventFD(); err != nil {
		t.Fatal(err)
	}
	s.start(m)
	defer s.runs.Wait()
	defer m.wakeup.set()
	defer s.stopping.Store(true)
	if late := time.After(time.Minute); !within(unmapped, late) {
		t.Fatal("its munmap hangs")
	}
	for late := time.Now().Add(time.Minute); m.space.left.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("it is still to get what it lacks")
		}
	}
	for page := range 3 {
		_, errno := uffdZero(fd, at+uint64(page)*pageSize, pageSize)
		if want := page < 2; (errno == unix.EEXIST) != want {
			t.Errorf("page %d after it was poisoned: %v", page, errno)
		}
	}
	go unmap(2)
	if late := time.After(time.Minute); !within(unmapped, late) {
		t.Fatal("its next munmap hangs")
	}
	s.finished.Store(true)
	for late := time.Now().Add(time.Minute); len(s.memories()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the restore does not end")
		}
	}
}

func within(done <-chan bool, late <-chan time.Time) bool {
	select {
	case <-done:
		return true
	case <-late:
		return false
	}
}

// What a refused child lacks is neither asked for nor brought.
func TestRefusedIsNotServed(t *testing.T) {
	s := &Server{}
	m := &memory{srv: s, fd: -1, refused: errors.New("not known"),
		space: newSpace(1, nil, []*piece{{start: pageSize, end: 2 * pageSize}})}
	s.live = append(s.live, m)
	if missing := s.missing(); len(missing) > 0 {
		t.Errorf("%v is fetched for it", missing)
	}
	n := m.fill(prefetch.Range{Len: pageSize}, func(int, uint64, int64, int64) (int64, unix.Errno) {
		return pageSize, 0
	})
	if n > 0 {
		t.Errorf("%d bytes are filled in", n)
	}
}
