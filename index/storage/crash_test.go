package storage

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const seeds = 400

// names gives the files of /d with their contents.
func state(t *testing.T, m *Mem) string {
	t.Helper()
	names, err := m.List("/d")
	ok(t, err)
	var out []string
	for _, name := range names {
		b, err := ReadFile(m, "/d/"+name, 1<<20)
		ok(t, err)
		out = append(out, name+"="+string(b))
	}
	return strings.Join(out, " ")
}

// states gives the states that crashes leave, sorted.
func states(t *testing.T, m *Mem) []string {
	t.Helper()
	image := m.Snapshot()
	seen := map[string]bool{}
	for seed := range uint64(seeds) {
		a, b := state(t, image.Crash(seed)), state(t, image.Crash(seed))
		if a != b {
			t.Fatalf("seed %d gives %q and then %q", seed, a, b)
		}
		seen[a] = true
	}
	var out []string
	for s := range seen {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func expectStates(t *testing.T, m *Mem, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := states(t, m); !slices.Equal(got, want) {
		t.Errorf("states after a crash:\n%q\nwant\n%q", got, want)
	}
}

func TestCrashOfNames(t *testing.T) {
	m := NewMem("/d")
	ok(t, WriteSynced(m, "/d/a", []byte("1")))
	expectStates(t, m, "", "a=1")
	ok(t, m.SyncDir("/d"))
	expectStates(t, m, "a=1")
	ok(t, m.Rename("/d/a", "/d/b"))
	expectStates(t, m, "a=1", "b=1")
	ok(t, WriteSynced(m, "/d/a", []byte("2")))
	expectStates(t, m, "a=1", "b=1", "a=2", "a=2 b=1")
	ok(t, m.SyncDir("/d"))
	ok(t, m.Remove("/d/a"))
	ok(t, m.Remove("/d/b"))
	expectStates(t, m, "", "a=2", "b=1", "a=2 b=1")
	ok(t, m.SyncDir("/d"))
	expectStates(t, m, "")
}

func TestCrashOfContent(t *testing.T) {
	m := NewMem("/d")
	f := open(t, m, "/d/f", Create)
	_, err := f.WriteAt([]byte("11"), 0)
	ok(t, err)
	ok(t, f.Sync())
	ok(t, m.SyncDir("/d"))
	_, err = f.WriteAt([]byte("22"), 0)
	ok(t, err)
	ok(t, f.Truncate(3))
	_, err = f.WriteAt([]byte("4"), 3)
	ok(t, err)
	expectStates(t, m, "f=11", "f=22", "f=11\x00", "f=22\x00", "f=11\x004", "f=22\x004")
	ok(t, f.Sync())
	expectStates(t, m, "f=22\x004")
	if got := state(t, m.Snapshot().Now()); got != "f=22\x004" {
		t.Errorf("the image holds %q", got)
	}
}

func TestCrashTears(t *testing.T) {
	m := NewMem("/d")
	f := open(t, m, "/d/f", Create)
	_, err := f.WriteAt(bytes.Repeat([]byte{1}, 8192), 0)
	ok(t, err)
	ok(t, f.Sync())
	ok(t, m.SyncDir("/d"))
	ok(t, f.Writev([][]byte{bytes.Repeat([]byte{2}, 4096)}, 1024, false))
	ok(t, f.Punch(4096, 4096))
	image := m.Snapshot()
	torn := map[int]bool{}
	for seed := range uint64(seeds) {
		got, err := ReadFile(image.Crash(seed), "/d/f", 1<<20)
		ok(t, err)
		for sector := range 16 {
			part := got[sector*512 : sector*512+512]
			if bytes.Count(part, part[:1]) != 512 {
				t.Fatalf("seed %d: sector %d is torn", seed, sector)
			}
			may := []byte{1}
			if sector >= 2 && sector < 10 {
				may = append(may, 2)
			}
			if sector >= 8 {
				may = append(may, 0)
			}
			if !bytes.Contains(may, part[:1]) {
				t.Fatalf("seed %d: sector %d holds %d", seed, sector, part[0])
			}
		}
		torn[bytes.Count(got[1024:4096], []byte{2})/512] = true
	}
	if len(torn) != 7 {
		t.Errorf("of six sectors these numbers survived: %v", torn)
	}
}

func TestImageStaysAsItWas(t *testing.T) {
	m := NewMem("/d")
	ok(t, WriteFile(m, "/d/f", []byte("old")))
	image := m.Snapshot()
	f := open(t, m, "/d/f", Write)
	_, err := f.WriteAt([]byte("new"), 0)
	ok(t, err)
	ok(t, f.Sync())
	ok(t, m.Remove("/d/f"))
	c := image.Crash(1)
	g := open(t, c, "/d/f", Write)
	_, err = g.WriteAt([]byte("bad"), 0)
	ok(t, err)
	if got := state(t, image.Crash(1)); got != "f=old" {
		t.Errorf("the image holds %q", got)
	}
}

// faults gives a storage over m that fails the calls of one kind.
func faults(m *Mem, op Op, fault Fault) *Faulty {
	return &Faulty{m, func(c Call) Fault {
		if c.Op == op {
			return fault
		}
		return Fault{}
	}}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		op    Op
		fault Fault
		err   error
		want  string // what the file holds afterwards
	}{
		{OpWrite, Fault{Kind: Fail}, unix.EIO, "old"},
		{OpWrite, Fault{Kind: Fail, Err: unix.ENOSPC}, unix.ENOSPC, "old"},
		{OpWrite, Fault{Kind: Late}, unix.EIO, "new"},
		{OpWrite, Fault{Kind: Silent}, nil, "old"},
		{OpTruncate, Fault{Kind: Short}, unix.EIO, "old"},
		{OpTruncate, Fault{Kind: Late}, unix.EIO, "o"},
		{OpRename, Fault{Kind: Fail}, unix.EIO, "old"},
		{OpRemove, Fault{Kind: Silent}, nil, "old"},
		{OpPunch, Fault{Kind: Drop}, unix.EIO, "old"},
		{OpSync, Fault{Kind: Fail}, unix.EIO, "old"},
	} {
		m := NewMem("/d")
		ok(t, WriteFile(m, "/d/f", []byte("old")))
		s := faults(m, c.op, c.fault)
		f := open(t, s, "/d/f", Write)
		var err error
		switch c.op {
		case OpWrite:
			_, err = f.WriteAt([]byte("new"), 0)
		case OpTruncate:
			err = f.Truncate(1)
		case OpRename:
			err = s.Rename("/d/f", "/d/g")
		case OpRemove:
			err = s.Remove("/d/f")
		case OpPunch:
			err = f.Punch(0, 3)
		case OpSync:
			err = f.Sync()
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%s, fault %+v: error %v, want %v", c.op, c.fault, err, c.err)
		}
		if got := state(t, m); got != "f="+c.want {
			t.Errorf("%s, fault %+v: holds %q, want %q", c.op, c.fault, got, c.want)
		}
	}
}

// TestEveryCallCanFail asks a rule that fails everything.
func TestEveryCallCanFail(t *testing.T) {
	m := NewMem("/d")
	ok(t, WriteFile(m, "/d/f", []byte("old")))
	broken := false
	s := &Faulty{m, func(Call) Fault {
		if broken {
			return Fault{Kind: Fail}
		}
		return Fault{}
	}}
	f := open(t, s, "/d/f", Write)
	broken = true
	for name, call := range map[string]func() error{
		"open":        func() error { _, err := s.Open("/d/f", Read); return err },
		"create":      func() error { _, err := s.Open("/d/g", Create); return err },
		"mkdir":       func() error { return s.Mkdir("/d/x") },
		"rename":      func() error { return s.Rename("/d/f", "/d/g") },
		"remove":      func() error { return s.Remove("/d/f") },
		"list":        func() error { _, err := s.List("/d"); return err },
		"stat":        func() error { _, err := s.Stat("/d/f"); return err },
		"sync folder": func() error { return s.SyncDir("/d") },
		"free":        func() error { _, err := s.Free("/d"); return err },
		"lock":        func() error { _, err := s.Lock("/d/l", ""); return err },
		"read":        func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		"readv":       func() error { return f.Readv([][]byte{make([]byte, 1)}, 0, true) },
		"write":       func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		"writev":      func() error { return f.Writev([][]byte{{1}}, 0, true) },
		"sync":        func() error { return f.Sync() },
		"truncate":    func() error { return f.Truncate(0) },
		"punch":       func() error { return f.Punch(0, 1) },
		"size":        func() error { _, err := f.Size(); return err },
		"allocated":   func() error { _, err := f.Allocated(0, 1); return err },
	} {
		if err := call(); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: error %v, want %v", name, err, unix.EIO)
		}
	}
	if got := state(t, m); got != "f=old" {
		t.Errorf("holds %q", got)
	}
	_, err := m.Stat("/d/g")
	fails(t, err, os.ErrNotExist)
}

func TestShortWrite(t *testing.T) {
	seen := map[int]bool{}
	for seed := range uint64(seeds) {
		m := NewMem("/d")
		f := open(t, faults(m, OpWrite, Fault{Kind: Short, Seed: seed}), "/d/f", Create)
		fails(t, f.Writev([][]byte{[]byte("ab"), []byte("cd")}, 0, false), unix.EIO)
		got := contentOf(t, f)
		if !strings.HasPrefix("abc", string(got)) {
			t.Fatalf("holds %q", got)
		}
		seen[len(got)] = true
	}
	if len(seen) != 4 {
		t.Errorf("lengths %v", seen)
	}
}

func TestRot(t *testing.T) {
	m := NewMem("/d")
	ok(t, WriteFile(m, "/d/f", make([]byte, 4)))
	for seed := range uint64(seeds) {
		f := open(t, faults(m, OpRead, Fault{Kind: Rot, Seed: seed}), "/d/f", Read)
		bufs := [][]byte{make([]byte, 1), make([]byte, 3)}
		ok(t, f.Readv(bufs, 0, false))
		ones := 0
		for _, b := range slices.Concat(bufs...) {
			for ; b != 0; b &= b - 1 {
				ones++
			}
		}
		if ones != 1 {
			t.Fatalf("%d bits are wrong", ones)
		}
	}
	if got := state(t, m); got != "f=\x00\x00\x00\x00" {
		t.Errorf("holds %q", got)
	}
}

// TestDroppedSync: what a failed sync was to cover does not become durable by a later one, and can be forgotten or
// still be read.
func TestDroppedSync(t *testing.T) {
	durable, read := map[string]bool{}, map[string]bool{}
	for seed := range uint64(seeds) {
		m := NewMem("/d")
		ok(t, WriteFile(m, "/d/f", []byte("old")))
		fault := Fault{Kind: Drop, Seed: seed}
		f := open(t, &Faulty{m, func(c Call) Fault {
			if c.Op == OpSync {
				return fault
			}
			return Fault{}
		}}, "/d/f", Write)
		_, err := f.WriteAt([]byte("new"), 0)
		ok(t, err)
		fails(t, f.Sync(), unix.EIO)
		fault = Fault{}
		ok(t, f.Sync())
		read[string(contentOf(t, f))] = true
		m.Forget()
		if got := string(contentOf(t, f)); got != state(t, m.Snapshot().Crash(seed))[2:] {
			t.Fatalf("%q can be read, and is not durable", got)
		}
		_, err = f.WriteAt([]byte("!"), 3)
		ok(t, err)
		ok(t, f.Sync())
		durable[state(t, m.Snapshot().Crash(seed))] = true
	}
	if !durable["f=old!"] || !durable["f=new!"] || len(durable) != 2 {
		t.Errorf("durable: %v", durable)
	}
	if !read["old"] || !read["new"] {
		t.Errorf("read: %v", read)
	}
}
