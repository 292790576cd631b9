package uffd

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

const madvGuardInstall, madvGuardRemove = 102, 103

// TestGuardMarkers holds the kernel to what guards_linux.go says of guard pages: no
// event tells of them, they can be found, and of all that fills memory only
// UFFDIO_COPY may write over them.
func TestGuardMarkers(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 16)
	at := addrOf(mem)
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(self)
	m, err := openPagemap(&process{pid: os.Getpid(), pidfd: self})
	if err != nil {
		t.Fatal(err)
	}
	if m == nil {
		t.Fatal("this kernel does not tell of guard pages; Linux 6.16 does")
	}
	defer m.close()
	if err := unix.Madvise(mem[4*pageSize:6*pageSize], madvGuardInstall); err != nil {
		t.Fatal(err)
	}
	if _, err := readMessages(fd, make([]message, 1)); err != unix.EAGAIN {
		t.Errorf("an event tells of guard pages: %v", err)
	}
	for _, c := range []struct {
		from, pages   uint64
		free, guarded int64
	}{{0, 4, 4, 0}, {0, 16, 4, 0}, {4, 12, 0, 2}, {5, 1, 0, 1}, {6, 10, 10, 0}} {
		free, guarded, errno := m.unguarded(at+c.from*pageSize, int64(c.pages)*pageSize)
		if errno != 0 || free != c.free*pageSize || guarded != c.guarded*pageSize {
			t.Errorf("%d pages from %d on: %d bytes free, %d guarded", c.pages, c.from, free, guarded)
		}
	}
	if _, e := uffdZero(fd, at+4*pageSize, pageSize); e != unix.EEXIST {
		t.Errorf("a zero page over a guard: %v", e)
	}
	if _, e := uffdPoison(fd, at+4*pageSize, pageSize); e != unix.EEXIST {
		t.Errorf("poison over a guard: %v", e)
	}
	if n, e := uffdZero(fd, at, 16*pageSize); n != 4*pageSize {
		t.Errorf("zero pages up to a guard: %d bytes, %v", n, e)
	}
	if free, guarded, _ := m.unguarded(at+4*pageSize, pageSize); free != 0 || guarded != pageSize {
		t.Errorf("what was refused has changed the guard: %d, %d", free, guarded)
	}
	// Removed, it is missing again.
	if err := unix.Madvise(mem[4*pageSize:6*pageSize], madvGuardRemove); err != nil {
		t.Fatal(err)
	}
	if n, e := uffdZero(fd, at+4*pageSize, 2*pageSize); n != 2*pageSize || e != 0 {
		t.Errorf("zero pages where a guard was: %d bytes, %v", n, e)
	}
}

// What a process has guarded is not filled, and not inherited as missing.
func TestDropGuarded(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 16)
	at := addrOf(mem)
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(self)
	m := &memory{space: newSpace(1, nil, []*piece{{start: at, end: at + 16*pageSize}})}
	if m.pagemap, err = openPagemap(&process{pid: os.Getpid(), pidfd: self}); err != nil {
		t.Fatal(err)
	}
	defer m.pagemap.close()
	for _, page := range []int{2, 3, 15} {
		if err := unix.Madvise(mem[page*pageSize:(page+1)*pageSize], madvGuardInstall); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.dropGuarded(); err != nil {
		t.Fatal(err)
	}
	c := m.space.fork()
	for page := range uint64(16) {
		_, _, ok := c.find(at + page*pageSize)
		if want := page != 2 && page != 3 && page != 15; ok != want {
			t.Errorf("page %d is missing in the child: %v", page, ok)
		}
	}
	if n := c.left.Load(); n != 13 {
		t.Errorf("%d pages are left", n)
	}
}

// Guard pages that cannot be looked for are not taken for none: nothing is written over them, and no child gets what
// they may cover.
func TestUnknownGuards(t *testing.T) {
	self := &process{os.Getpid(), pidfdOf(t, os.Getpid())}
	release := descriptors.Lack(t)
	m, err := openPagemap(self)
	release()
	if m != nil || err == nil {
		t.Errorf("without a descriptor there are no guard pages: %v", err)
	}

	fd := newUffd(t)
	at := addrOf(registered(t, fd, 16))
	s := &Server{log: slog.Default(), changed: make(chan struct{})}
	parent := &memory{srv: s, fd: fd, task: self, name: "x", pagemap: &pagemap{-1}, wakeup: &eventFD{-1},
		space: newSpace(1, nil, []*piece{{start: at, end: at + 16*pageSize}})}
	n, _, errno := parent.fillSome(prefetch.Range{Len: 16 * pageSize}, 0, 16*pageSize,
		func(fd int, addr uint64, _, n int64) (int64, unix.Errno) { return uffdZero(fd, addr, n) })
	if n > 0 || errno != unix.EBADF {
		t.Errorf("filled %d bytes over what may be guarded: %v", n, errno)
	}
	child := newUffd(t)
	if child, err = unix.Dup(child); err != nil {
		t.Fatal(err)
	}
	s.adopt(parent, child)
	live := s.memories()[0]
	live.mu.RLock()
	served := live.served()
	live.mu.RUnlock()
	if served {
		t.Error("a child is served with what may have been guarded")
	}
	for late := time.Now().Add(5 * time.Second); len(s.missing()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Error("what the child is not given is asked for")
			break
		}
	}
	s.stopping.Store(true)
	live.setGone()
	s.runs.Wait()
}
