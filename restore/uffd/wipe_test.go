package uffd

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// left tells by a letter a page what of [0, n) pages is missing in a space.
func left(s *space, n uint64) string {
	b := make([]byte, n)
	for page := range n {
		b[page] = '.'
		if _, _, ok := s.find((100 + page) * pageSize); ok {
			b[page] = 'x'
		}
	}
	return string(b)
}

// pagesAt makes a mapping of pages counted from 100 on.
func pagesAt(from, to uint64, wiped bool) mapping {
	return mapping{(100 + from) * pageSize, (100 + to) * pageSize, wiped}
}

// What a forked child gets follows from the images, the parent's mappings and, where
// these differ, the children's.
func TestWipe(t *testing.T) {
	wiped := []mapping{pagesAt(0, 8, true)}
	plain := []mapping{pagesAt(0, 8, false)}
	half := []mapping{pagesAt(0, 4, true), pagesAt(4, 8, false)}
	for _, c := range []struct {
		name     string
		images   bool
		parent   []mapping
		children [][]mapping
		want     string
	}{
		{"plain", false, plain, nil, "xxxxxxxx"},
		{"since the dump", true, wiped, nil, "........"},
		{"nothing is known of the parent", true, nil, nil, "........"},
		{"nothing is known of it, and nothing was", false, nil, nil, "xxxxxxxx"},
		{"marked since then", false, wiped, [][]mapping{wiped}, "........"},
		{"marked since then, no child to be seen", false, wiped, nil, "........"},
		{"marked after the fork", false, wiped, [][]mapping{plain}, "xxxxxxxx"},
		{"unmarked since then", true, plain, [][]mapping{plain, plain}, "xxxxxxxx"},
		{"unmarked after the fork", true, plain, [][]mapping{wiped}, "........"},
		{"children differ", true, plain, [][]mapping{wiped, plain}, "xxxxxxxx"},
		{"half of it marked since then", false, half, [][]mapping{half}, "....xxxx"},
		{"half of it unmarked since then", true, half, [][]mapping{half}, "....xxxx"},
		{"moved away since then", true, []mapping{pagesAt(2, 4, true)}, nil, "........"},
		{"the child has unmapped it", false, wiped, [][]mapping{nil, {pagesAt(0, 2, true)}}, "........"},
	} {
		task := PlanTask{
			VMAs: []criuimg.VMA{{Start: 100 * pageSize, End: 108 * pageSize, Flags: 0x22, Status: 513}},
			Ranges: []PlanRange{{Start: 100 * pageSize, End: 103 * pageSize},
				{Start: 103 * pageSize, End: 108 * pageSize, Off: 3 * pageSize}},
		}
		if c.images {
			task.VMAs[0].Madvise = 1 << unix.MADV_WIPEONFORK
		}
		parent := task.space(1)
		s := parent.fork()
		if doubts := s.wipe(c.parent); len(doubts) > 0 {
			s.decide(doubts, c.children, c.parent)
		}
		if got := left(s, 8); got != c.want {
			t.Errorf("%s: missing %s, want %s", c.name, got, c.want)
		}
		if got := left(parent, 8); got != "xxxxxxxx" {
			t.Errorf("%s: the parent lacks %s", c.name, got)
		}
	}
}

// The mark goes where an mremap takes the memory.
func TestWipeMoves(t *testing.T) {
	vmas := []criuimg.VMA{{Start: 200 * pageSize, End: 208 * pageSize, Flags: 0x22, Status: 513}}
	s := newSpace(1, vmas, []*piece{{start: 200 * pageSize, end: 208 * pageSize, wiped: true}})
	s.remap(200*pageSize, 100*pageSize, 8*pageSize)
	s.unmap(200*pageSize, 208*pageSize)
	c := s.fork()
	c.wipe(nil)
	if got := left(s, 8) + left(c, 8); got != "xxxxxxxx........" {
		t.Errorf("missing %s", got)
	}
}

// The kernel's smaps are understood.
func TestMappings(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 8*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := unix.Madvise(mem[2*pageSize:4*pageSize], unix.MADV_WIPEONFORK); err != nil {
		t.Fatal(err)
	}
	all, err := mappings(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for page := range 8 {
		m, known := lookup(all, addrOf(mem[page*pageSize:]))
		if want := page == 2 || page == 3; !known || m.wiped != want {
			t.Errorf("page %d: %+v, %v", page, m, known)
		}
	}
	if _, known := lookup(all, 1<<60); known {
		t.Error("something is mapped where nothing can be")
	}
	if all, err := mappings(1 << 30); all != nil || err != nil {
		t.Errorf("a process that is not there has mappings: %v, %v", all, err)
	}
}

// What a parent has marked while its smaps cannot be read is not given to its child: the child waits until they can.
func TestWipeUnknown(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 8)
	if err := unix.Madvise(mem[2*pageSize:4*pageSize], unix.MADV_WIPEONFORK); err != nil {
		t.Fatal(err)
	}
	at := addrOf(mem)
	own := &process{os.Getpid(), pidfdOf(t, os.Getpid())}
	s := newSpace(1, nil, []*piece{{start: at, end: at + 8*pageSize}})
	child := &memory{parent: own, space: s.fork()}
	release := descriptors.Lack(t)
	wiped := make(chan error, 1)
	go func() { wiped <- child.wipe() }()
	time.Sleep(10 * lackPause)
	release()
	if err := <-wiped; err != nil {
		t.Fatal(err)
	}
	for page := range uint64(8) {
		_, _, ok := child.space.find(at + page*pageSize)
		if want := page != 2 && page != 3; ok != want {
			t.Errorf("page %d is given to the child: %v", page, ok)
		}
	}
}
