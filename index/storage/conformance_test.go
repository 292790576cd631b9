package storage

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pass(Call) Fault { return Fault{} }

// TestConformance runs one suite over all implementations.
func TestConformance(t *testing.T) {
	for _, impl := range []struct {
		name string
		make func(t *testing.T) (Storage, string)
	}{
		{"disk", func(t *testing.T) (Storage, string) { return Disk{}, t.TempDir() }},
		{"mem", func(*testing.T) (Storage, string) { return NewMem("/a/store"), "/a/store" }},
		{"crashed mem", func(*testing.T) (Storage, string) { return NewMem("/a").Snapshot().Crash(1), "/a" }},
		{"faulty disk", func(t *testing.T) (Storage, string) { return &Faulty{Disk{}, pass}, t.TempDir() }},
		{"faulty mem", func(*testing.T) (Storage, string) { return &Faulty{NewMem("/a"), pass}, "/a" }},
	} {
		t.Run(impl.name, func(t *testing.T) {
			for _, c := range conformance {
				t.Run(c.name, func(t *testing.T) {
					s, dir := impl.make(t)
					c.run(t, s, dir)
				})
			}
		})
	}
}

var conformance = []struct {
	name string
	run  func(t *testing.T, s Storage, dir string)
}{
	{"open", testOpen}, {"vectors", testVectors}, {"holes", testHoles}, {"truncate", testTruncate},
	{"names", testNames}, {"folders", testFolders}, {"lock", testLock}, {"whole files", testWholeFiles},
	{"many at once", testManyAtOnce}, {"random", testRandom},
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fails(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func open(t *testing.T, s Storage, name string, how How) File {
	t.Helper()
	f, err := s.Open(name, how)
	ok(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func contentOf(t *testing.T, f File) []byte {
	t.Helper()
	size, err := f.Size()
	ok(t, err)
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); int64(n) != size || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read %d of %d bytes: %v", n, size, err)
	}
	return b
}

func testOpen(t *testing.T, s Storage, dir string) {
	name := filepath.Join(dir, "f")
	for _, how := range []How{Read, Write} {
		_, err := s.Open(name, how)
		fails(t, err, os.ErrNotExist)
	}
	f := open(t, s, name, Create)
	if f.Name() != name {
		t.Errorf("name %s, want %s", f.Name(), name)
	}
	_, err := f.WriteAt([]byte("hello"), 3)
	ok(t, err)
	_, err = s.Open(name, Create)
	fails(t, err, os.ErrExist)
	r := open(t, s, name, Read)
	if got := contentOf(t, r); string(got) != "\x00\x00\x00hello" {
		t.Errorf("content %q", got)
	}
	if _, err := r.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a file open for reading was written")
	}
	ok(t, f.Sync())
	w := open(t, s, name, Write)
	_, err = w.WriteAt([]byte("J"), 3)
	ok(t, err)
	if got := contentOf(t, r); string(got) != "\x00\x00\x00Jello" {
		t.Errorf("content %q", got)
	}
	n, err := r.ReadAt(make([]byte, 10), 5)
	if fails(t, err, io.EOF); n != 3 {
		t.Errorf("read %d bytes, want 3", n)
	}
	open(t, s, name, Replace)
	if got := contentOf(t, r); len(got) != 0 {
		t.Errorf("content %q after it was replaced", got)
	}
	ok(t, w.Close())
	if _, err := w.ReadAt(make([]byte, 1), 0); err == nil {
		t.Error("a closed file was read")
	}
	_, err = s.Open(filepath.Join(dir, "none", "f"), Create)
	fails(t, err, os.ErrNotExist)
	_, err = s.Open(filepath.Join(name, "f"), Create)
	fails(t, err, unix.ENOTDIR)
}

// aligned gives a buffer that direct I/O takes.
func aligned(t *testing.T, n int, fill byte) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	ok(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	for i := range b {
		b[i] = fill
	}
	return b
}

func testVectors(t *testing.T, s Storage, dir string) {
	for _, past := range []bool{false, true} {
		name := filepath.Join(dir, map[bool]string{false: "plain", true: "past"}[past])
		f := open(t, s, name, Create|Direct)
		ok(t, f.Writev([][]byte{aligned(t, 8192, 'a'), aligned(t, 4096, 'b')}, 4096, past))
		ok(t, f.Writev([][]byte{[]byte("odd"), nil, []byte("bytes")}, 16384+7, past))
		want := slices.Concat(make([]byte, 4096), bytes.Repeat([]byte("a"), 8192), bytes.Repeat([]byte("b"), 4096),
			make([]byte, 7), []byte("oddbytes"))
		if got := contentOf(t, f); !bytes.Equal(got, want) {
			t.Fatalf("past %v: %d bytes are not what was written", past, len(got))
		}
		bufs := [][]byte{aligned(t, 4096, 0), aligned(t, 4096, 0), aligned(t, 8192, 0)}
		ok(t, f.Readv(bufs, 0, past))
		if !bytes.Equal(slices.Concat(bufs...), want[:16384]) {
			t.Errorf("past %v: read other bytes than were written", past)
		}
		odd := [][]byte{make([]byte, 100), make([]byte, 1)}
		ok(t, f.Readv(odd, 4000, past))
		if !bytes.Equal(slices.Concat(odd...), want[4000:4101]) {
			t.Errorf("past %v: read other bytes than were written at an odd offset", past)
		}
		if len(odd) != 2 || len(odd[0]) != 100 || len(odd[1]) != 1 {
			t.Error("the slice of buffers was changed")
		}
		fails(t, f.Readv([][]byte{make([]byte, 4096), make([]byte, 4096)}, 12288, past), io.ErrUnexpectedEOF)
	}
}

func testHoles(t *testing.T, s Storage, dir string) {
	name := filepath.Join(dir, "f")
	f := open(t, s, name, Create)
	_, err := f.WriteAt(bytes.Repeat([]byte("x"), 16*4096), 0)
	ok(t, err)
	ok(t, f.Sync())
	check := func(off, n, want int64) {
		t.Helper()
		got, err := f.Allocated(off, n)
		if ok(t, err); got != want {
			t.Errorf("%d bytes of [%d, +%d) are allocated, want %d", got, off, n, want)
		}
	}
	check(0, 16*4096, 16*4096)
	ok(t, f.Punch(4*4096, 8*4096))
	check(0, 16*4096, 8*4096)
	check(3*4096, 2*4096, 4096)
	check(4*4096, 8*4096, 0)
	if got := contentOf(t, f); len(got) != 16*4096 || !bytes.Equal(got[3*4096:13*4096],
		slices.Concat(bytes.Repeat([]byte("x"), 4096), make([]byte, 8*4096), bytes.Repeat([]byte("x"), 4096))) {
		t.Error("a hole is not zeros, or more than the hole is")
	}
	ok(t, f.Punch(100, 10))
	if got := contentOf(t, f); !bytes.Equal(got[99:111], []byte("x\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00x")) {
		t.Errorf("around a small hole: %q", got[99:111])
	}
	ok(t, f.Punch(15*4096, 4*4096))
	size, err := f.Size()
	if ok(t, err); size != 16*4096 {
		t.Errorf("a hole at the end made the size %d", size)
	}
	st, err := s.Stat(name)
	if ok(t, err); st.Size != 16*4096 || st.Disk != 7*4096 {
		t.Errorf("stat %+v, want size %d on %d bytes of disk", st, 16*4096, 7*4096)
	}
	// Room that is taken occupies disk before anything is written there, and what is given back does not.
	room := func(off, n, want int64) {
		t.Helper()
		if seesRoom(t, dir) {
			check(off, n, want)
		}
	}
	ok(t, f.Allocate(16*4096, 64*4096))
	room(12*4096, 68*4096, 67*4096)
	ok(t, f.Punch(20*4096, 60*4096))
	room(12*4096, 68*4096, 7*4096)
	ok(t, f.Allocate(4*4096, 2*4096))
	room(4*4096, 8*4096, 2*4096)
	if got := contentOf(t, f); len(got) != 80*4096 || !bytes.Equal(got[4*4096:12*4096], make([]byte, 8*4096)) {
		t.Error("room that was taken does not read as zeros")
	}
	f.WillNeed(0, 4096)

	// More pieces than a look tells at once.
	many := open(t, s, filepath.Join(dir, "many"), Create)
	const pieces = 300
	_, err = many.WriteAt(bytes.Repeat([]byte("x"), 2*pieces*4096), 0)
	ok(t, err)
	for i := range int64(pieces) {
		ok(t, many.Punch(2*i*4096, 4096))
	}
	for _, c := range []struct{ off, n, want int64 }{
		{0, 2 * pieces * 4096, pieces * 4096}, {4096, 400 * 4096, 200 * 4096}, {4096 + 100, 4096, 4096 - 100},
		{(2*pieces - 3) * 4096, 100 * 4096, 2 * 4096}, {2 * pieces * 4096, 4096, 0},
	} {
		got, err := many.Allocated(c.off, c.n)
		if ok(t, err); got != c.want {
			t.Errorf("%d bytes of [%d, +%d) in pieces are allocated, want %d", got, c.off, c.n, c.want)
		}
	}
}

// seesRoom says whether it shows in dir what was allocated and not written: not where there are no extent maps.
func seesRoom(t *testing.T, dir string) bool {
	f, err := os.CreateTemp(dir, "")
	if errors.Is(err, os.ErrNotExist) { // a folder in memory
		return true
	}
	ok(t, err)
	defer f.Close()
	_, err = mapped(int(f.Fd()), 0, 4096)
	return err == nil
}

func testTruncate(t *testing.T, s Storage, dir string) {
	f := open(t, s, filepath.Join(dir, "f"), Create)
	_, err := f.WriteAt(bytes.Repeat([]byte("x"), 10000), 0)
	ok(t, err)
	ok(t, f.Truncate(5000))
	ok(t, f.Truncate(9000))
	if got := contentOf(t, f); !bytes.Equal(got, append(bytes.Repeat([]byte("x"), 5000), make([]byte, 4000)...)) {
		t.Error("what was cut off came back")
	}
	ok(t, f.Truncate(0))
	if got := contentOf(t, f); len(got) != 0 {
		t.Errorf("%d bytes are left", len(got))
	}
}

func testNames(t *testing.T, s Storage, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	fails(t, s.Rename(a, b), os.ErrNotExist)
	fails(t, s.Remove(a), os.ErrNotExist)
	ok(t, WriteSynced(s, a, []byte("one")))
	old := open(t, s, a, Read)
	ok(t, s.Rename(a, b))
	ok(t, s.Rename(b, b))
	_, err := s.Stat(a)
	fails(t, err, os.ErrNotExist)
	ok(t, WriteSynced(s, a, []byte("two")))
	ok(t, s.Rename(a, b))
	if got := contentOf(t, open(t, s, b, Read)); string(got) != "two" {
		t.Errorf("content %q", got)
	}
	if got := contentOf(t, old); string(got) != "one" {
		t.Errorf("a file that was replaced while open has content %q", got)
	}
	f := open(t, s, b, Write)
	ok(t, s.Remove(b))
	if got := contentOf(t, f); string(got) != "two" {
		t.Errorf("a file that was removed while open has content %q", got)
	}
	names, err := s.List(dir)
	if ok(t, err); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	ok(t, s.SyncDir(dir))
}

func testFolders(t *testing.T, s Storage, dir string) {
	sub := filepath.Join(dir, "sub")
	_, err := s.List(sub)
	fails(t, err, os.ErrNotExist)
	fails(t, s.SyncDir(sub), os.ErrNotExist)
	_, err = s.Free(sub)
	fails(t, err, os.ErrNotExist)
	ok(t, s.Mkdir(sub))
	fails(t, s.Mkdir(sub), os.ErrExist)
	fails(t, s.Mkdir(filepath.Join(dir, "none", "sub")), os.ErrNotExist)
	for _, name := range []string{"c", "a", "b"} {
		ok(t, WriteSynced(s, filepath.Join(sub, name), nil))
	}
	names, err := s.List(sub)
	if ok(t, err); !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("names %v", names)
	}
	fails(t, s.Remove(sub), unix.ENOTEMPTY)
	_, err = s.Open(sub, Write)
	fails(t, err, unix.EISDIR)
	st, err := s.Stat(sub)
	if ok(t, err); !st.Dir {
		t.Error("a folder is not described as one")
	}
	free, err := s.Free(sub)
	if ok(t, err); free <= 0 {
		t.Errorf("%d bytes are free", free)
	}
	for _, name := range names {
		ok(t, s.Remove(filepath.Join(sub, name)))
	}
	ok(t, s.Remove(sub))
}

func testLock(t *testing.T, s Storage, dir string) {
	name := filepath.Join(dir, "lock")
	l, err := s.Lock(name, "one")
	ok(t, err)
	var held *Locked
	if _, err := s.Lock(name, "two"); !errors.As(err, &held) || held.Holder != "one" {
		t.Fatalf("the second lock: %v", err)
	}
	ok(t, l.Close())
	l, err = s.Lock(name, "two")
	ok(t, err)
	ok(t, l.Close())
	_, err = s.Lock(filepath.Join(dir, "none", "lock"), "x")
	fails(t, err, os.ErrNotExist)

	_, err = s.LockShared(filepath.Join(dir, "other"))
	fails(t, err, os.ErrNotExist)
	a, err := s.LockShared(name)
	ok(t, err)
	b, err := s.LockShared(name)
	ok(t, err)
	for _, reader := range []io.Closer{a, b} {
		if _, err := s.Lock(name, "three"); !errors.As(err, &held) || held.Holder != readers {
			t.Fatalf("a lock beside readers: %v", err)
		}
		ok(t, reader.Close())
	}
	l, err = s.Lock(name, "three")
	ok(t, err)
	if _, err := s.LockShared(name); !errors.As(err, &held) || held.Holder != "three" {
		t.Fatalf("a reader beside a writer: %v", err)
	}
	ok(t, l.Close())
}

func testWholeFiles(t *testing.T, s Storage, dir string) {
	name := filepath.Join(dir, "f")
	_, err := ReadFile(s, name, 1<<20)
	fails(t, err, os.ErrNotExist)
	for _, want := range []string{"some", "other content", ""} {
		ok(t, WriteFile(s, name, []byte(want)))
		got, err := ReadFile(s, name, 1<<20)
		if ok(t, err); string(got) != want {
			t.Errorf("content %q, want %q", got, want)
		}
	}
	names, err := s.List(dir)
	if ok(t, err); !slices.Equal(names, []string{"f"}) {
		t.Errorf("names %v", names)
	}
}

func testManyAtOnce(t *testing.T, s Storage, dir string) {
	f := open(t, s, filepath.Join(dir, "f"), Create)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := bytes.Repeat([]byte{byte(i + 1)}, 4096)
			for k := range 20 {
				off := int64(k*8+i) * 4096
				back := [][]byte{make([]byte, 4096)}
				err := errors.Join(f.Writev([][]byte{p}, off, false), f.Sync(), f.Readv(back, off, false))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := contentOf(t, f)
	for i := range got {
		if got[i] != byte(i/4096%8+1) {
			t.Fatalf("byte %d is %d", i, got[i])
		}
	}
}

// testRandom does random things to a file and to a plain slice.
func testRandom(t *testing.T, s Storage, dir string) {
	r := rand.New(rand.NewPCG(7, 7))
	f := open(t, s, filepath.Join(dir, "f"), Create)
	var want []byte
	grow := func(n int) {
		if n > len(want) {
			want = append(want, make([]byte, n-len(want))...)
		}
	}
	for i := range 400 {
		off, n := r.IntN(60000), r.IntN(20000)+1
		switch r.IntN(5) {
		case 0, 1:
			p := bytes.Repeat([]byte{byte(i)}, n)
			_, err := f.WriteAt(p, int64(off))
			ok(t, err)
			grow(off + n)
			copy(want[off:], p)
		case 2:
			ok(t, f.Punch(int64(off), int64(n)))
			if off < len(want) {
				clear(want[off:min(len(want), off+n)])
			}
		case 3:
			ok(t, f.Truncate(int64(off)))
			grow(off)
			want = want[:off:off]
		case 4:
			ok(t, f.Allocate(int64(off), int64(n)))
			grow(off + n)
		}
		if got := contentOf(t, f); !bytes.Equal(got, want) {
			t.Fatalf("after %d changes the content differs", i+1)
		}
	}
}
