package uffd

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
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
	m := openPagemap(&process{pid: os.Getpid(), pidfd: self})
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
		free, guarded := m.unguarded(at+c.from*pageSize, int64(c.pages)*pageSize)
		if free != c.free*pageSize || guarded != c.guarded*pageSize {
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
	if free, guarded := m.unguarded(at+4*pageSize, pageSize); free != 0 || guarded != pageSize {
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
	m := &memory{space: newSpace(1, nil, []*piece{{start: at, end: at + 16*pageSize}}),
		pagemap: openPagemap(&process{pid: os.Getpid(), pidfd: self})}
	defer m.pagemap.close()
	for _, page := range []int{2, 3, 15} {
		if err := unix.Madvise(mem[page*pageSize:(page+1)*pageSize], madvGuardInstall); err != nil {
			t.Fatal(err)
		}
	}
	m.dropGuarded()
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
