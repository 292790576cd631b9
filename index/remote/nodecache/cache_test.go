package nodecache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is objects somewhere else.
type far struct {
	mu       sync.Mutex
	objects  map[object.Name][]byte
	requests []int // their lengths
	fail     error
	spoil    int           // how many answers are to have a wrong byte
	gate     chan struct{} // when not nil, a request waits for it
}

func (f *far) ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error {
	f.mu.Lock()
	f.requests = append(f.requests, len(p))
	err, gate := f.fail, f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if err == nil {
		copy(p, f.objects[name][off:])
	}
	f.mu.Lock()
	if f.spoil > 0 {
		f.spoil--
		p[17+f.spoil] ^= 1
	}
	f.mu.Unlock()
	return err
}

func (f *far) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

// put makes an object of slots of the given lengths.
func (f *far) put(seed uint64, lengths ...int) (Object, []pack.Chunk) {
	name := object.Name{byte(seed), 19: byte(len(f.objects))}
	rnd := rand.NewChaCha8([32]byte{byte(seed)})
	var b []byte
	var locs []pack.Chunk
	for _, n := range lengths {
		l := pack.Loc{Pack: 1, Page: uint32(len(b) / chunk.PageSize), Stored: uint32(n), Raw: uint32(n)}
		slot := make([]byte, l.Slot())
		rnd.Read(slot[:n])
		l.CRC = crc32c.Checksum(slot)
		b = append(b, slot...)
		locs = append(locs, pack.Chunk{ID: chunk.Sum(slot[:n]), Loc: l})
	}
	f.objects[name] = b
	return Object{Name: name, Size: int64(len(b)), Verify: func(c pack.Chunk, slot []byte) error {
		if chunk.Sum(slot[:c.Loc.Stored]) != c.ID {
			return pack.ErrCorrupt
		}
		return nil
	}}, locs
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newFar() *far { return &far{objects: map[object.Name][]byte{}} }

func cacheIn(t *testing.T, dir string, src *far, limit int64) *Cache {
	t.Helper()
	c, err := Open(Options{Dir: dir, Limit: limit, Storage: storage.Disk{}, Source: src, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// read reads slots and holds them against the object.
func read(t *testing.T, c *Cache, src *far, o Object, locs []pack.Chunk) {
	t.Helper()
	bufs := make([][]byte, len(locs))
	for i, x := range locs {
		bufs[i] = make([]byte, x.Loc.Slot())
	}
	for i, err := range c.ReadSlots(context.Background(), o, locs, bufs, len(locs)%2 == 0) {
		if err != nil {
			t.Fatalf("slot %d: %v", i, err)
		}
		if l := locs[i].Loc; !bytes.Equal(bufs[i], src.objects[o.Name][l.Offset():][:l.Slot()]) {
			t.Fatalf("slot %d has other bytes", i)
		}
	}
}

func many(n, length int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = length - i%3
	}
	return out
}

// TestFetchedOnce reads all twice, the second time from what another cache left in the folder.
func TestFetchedOnce(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	c := cacheIn(t, dir, src, 1<<30)
	o, locs := src.put(1, many(100, 100_000)...)
	read(t, c, src, o, locs)
	if n := src.asked(); n != 1 {
		t.Errorf("%d requests for what lies side by side", n)
	}
	read(t, c, src, o, locs)
	again := cacheIn(t, dir, src, 1<<30)
	read(t, again, src, o, locs)
	read(t, again, src, o, locs[7:9])
	if n := src.asked(); n != 1 {
		t.Errorf("%d requests for what was there", n-1)
	}
	if used := again.Used(); used < o.Size || used > o.Size+1<<20 {
		t.Errorf("%d bytes are said to be kept of %d", used, o.Size)
	}
}

// TestRequests asks for slots with gaps between: small ones are fetched along, and no request is larger than allowed.
func TestRequests(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(2, many(600, 100_000)...)
	read(t, c, src, o, []pack.Chunk{locs[0], locs[5], locs[10], locs[100], locs[101]})
	if n := src.asked(); n != 2 {
		t.Errorf("%d requests for two places", n)
	}
	read(t, c, src, o, locs)
	for _, n := range src.requests {
		if n > MaxRequest {
			t.Errorf("a request of %d bytes", n)
		}
	}
}

// TestReadersShareAFetch lets many ask for the same at once.
func TestReadersShareAFetch(t *testing.T) {
	src := newFar()
	src.gate = make(chan struct{})
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(3, many(10, 50_000)...)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { read(t, c, src, o, locs) })
	}
	for src.asked() == 0 {
		continue
	}
	close(src.gate)
	all.Wait()
	if n := src.asked(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestWrongBytes has the file changed, and then the object: the first is fetched again, the second refused and not
// kept.
func TestWrongBytes(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	c := cacheIn(t, dir, src, 1<<30)
	o, locs := src.put(4, many(20, 30_000)...)
	read(t, c, src, o, locs)
	f, err := os.OpenFile(filepath.Join(dir, o.Name.String()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("no"), locs[3].Loc.Offset()+100); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(locs[18].Loc.Offset() + 5); err != nil {
		t.Fatal(err)
	}
	f.Close()
	read(t, c, src, o, locs)
	read(t, c, src, o, locs)
	if n := src.asked(); n != 2 {
		t.Errorf("%d requests, not one at first and one for what was wrong", n)
	}

	bad, locs := src.put(5, 10_000, 10_000, 10_000)
	src.objects[bad.Name][locs[1].Loc.Offset()] ^= 1
	for range 2 {
		bufs := [][]byte{make([]byte, 12288), make([]byte, 12288), make([]byte, 12288)}
		errs := c.ReadSlots(t.Context(), bad, locs, bufs, false)
		if errs[0] != nil || !errors.Is(errs[1], pack.ErrCorrupt) || errs[2] != nil {
			t.Errorf("one slot of three is wrong, and the errors are %v", errs)
		}
	}
	// With the right guard it is not the chunk yet.
	slot := src.objects[bad.Name][locs[1].Loc.Offset():][:locs[1].Loc.Slot()]
	locs[1].Loc.CRC = crc32c.Checksum(slot)
	for range 2 {
		errs := c.ReadSlots(t.Context(), bad, locs[1:2], [][]byte{make([]byte, 12288)}, false)
		if !errors.Is(errs[0], pack.ErrCorrupt) {
			t.Errorf("another chunk with a right guard: %v", errs[0])
		}
	}
}

// TestImpossibleSlot refuses what is not in the object, without asking.
func TestImpossibleSlot(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(6, 10_000)
	locs[0].Loc.Page++
	errs := c.ReadSlots(t.Context(), o, locs, [][]byte{make([]byte, 12288)}, false)
	if !errors.Is(errs[0], pack.ErrCorrupt) || src.asked() > 0 {
		t.Errorf("a slot behind the end: %v after %d requests", errs[0], src.asked())
	}
}

// TestFailedRequest passes the source's error on to all who wait, and asks again the next time.
func TestFailedRequest(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(7, 10_000, 20_000)
	src.fail = errors.New("no way there")
	errs := c.ReadSlots(t.Context(), o, locs, [][]byte{make([]byte, 12288), make([]byte, 20480)}, false)
	if !errors.Is(errs[0], src.fail) || !errors.Is(errs[1], src.fail) {
		t.Errorf("errors %v", errs)
	}
	src.fail = nil
	read(t, c, src, o, locs)
}

// TestLimit reads more than may be kept: what was read last is kept, and the disk is not filled.
func TestLimit(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	const limit = 5 * regionBytes
	c := cacheIn(t, dir, src, limit)
	o, locs := src.put(8, many(500, 100_000)...)
	read(t, c, src, o, locs[:40])
	for i := 0; i+20 <= len(locs); i += 20 {
		read(t, c, src, o, locs[i:i+20])
		read(t, c, src, o, locs[:40]) // always wanted
	}
	st, err := storage.Disk{}.Stat(filepath.Join(dir, o.Name.String()))
	if err != nil || st.Disk > limit+2*regionBytes {
		t.Errorf("%d bytes are kept, %v", st.Disk, err)
	}
	asked := src.asked()
	read(t, c, src, o, locs[:40])
	if src.asked() != asked {
		t.Error("what was read all the time was given back")
	}
	if c.Counts.Evicted.Load() == 0 {
		t.Error("nothing was given back")
	}
	if small := cacheIn(t, dir, src, regionBytes); small.Used() > regionBytes {
		t.Errorf("a smaller cache keeps %d bytes", small.Used())
	}
}

// TestFullDisk gives what it fetches, although it can keep nothing.
func TestFullDisk(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	broken := &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpWrite {
			return storage.Fault{Kind: storage.Fail}
		}
		return storage.Fault{}
	}}
	c, err := Open(Options{Dir: dir, Limit: 1 << 30, Storage: broken, Source: src, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	o, locs := src.put(9, many(30, 10_000)...)
	read(t, c, src, o, locs)
	read(t, c, src, o, locs)
}

// TestManyReaders reads at random, many at once, with so little room that all is given back again and again.
func TestManyReaders(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 3*regionBytes)
	var objects []Object
	var locs [][]pack.Chunk
	for i := range 4 {
		o, l := src.put(uint64(10+i), many(200, 50_000+i*1000)...)
		objects, locs = append(objects, o), append(locs, l)
	}
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 0))
			for range 150 {
				k := rnd.IntN(len(objects))
				from := rnd.IntN(len(locs[k]))
				read(t, c, src, objects[k], locs[k][from:min(len(locs[k]), from+1+rnd.IntN(30))])
			}
		})
	}
	all.Wait()
}

// TestNothingIsKept reads through a cache without room: each time from the source, and no folder is made.
func TestNothingIsKept(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	c := cacheIn(t, dir, src, 0)
	o, locs := src.put(20, many(10, 10_000)...)
	read(t, c, src, o, locs)
	read(t, c, src, o, locs)
	if n := src.asked(); n != 2 {
		t.Errorf("%d requests", n)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}

// TestAnothersBytes says of a chunk that it lies where the file holds another one, with the guard of that: it is not
// taken for it, at any time.
func TestAnothersBytes(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(21, 10_000, 10_000)
	read(t, c, src, o, locs)
	forged := pack.Chunk{ID: locs[0].ID, Loc: locs[1].Loc}
	for range 2 {
		errs := c.ReadSlots(t.Context(), o, []pack.Chunk{forged}, [][]byte{make([]byte, 12288)}, false)
		if !errors.Is(errs[0], pack.ErrCorrupt) {
			t.Errorf("another chunk's bytes: %v", errs[0])
		}
	}
	read(t, c, src, o, locs)
}

// TestFoundOnce reads what an earlier cache has fetched: its ids are not worked out again, and still nothing else is
// taken for it. Without what is remembered, or with that damaged, they are.
func TestFoundOnce(t *testing.T) {
	src, dir := newFar(), filepath.Join(t.TempDir(), "cache")
	o, locs := src.put(23, many(50, 10_000)...)
	read(t, cacheIn(t, dir, src, 1<<30), src, o, locs)
	asked := src.asked()
	sum, verified := o.Verify, 0
	o.Verify = func(c pack.Chunk, slot []byte) error {
		verified++
		return sum(c, slot)
	}
	read(t, cacheIn(t, dir, src, 1<<30), src, o, locs)
	if verified != 0 || src.asked() != asked {
		t.Errorf("%d ids were worked out again, %d requests", verified, src.asked()-asked)
	}
	path := filepath.Join(dir, o.Name.String())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("no"), locs[7].Loc.Offset()); err != nil {
		t.Fatal(err)
	}
	read(t, cacheIn(t, dir, src, 1<<30), src, o, locs)
	if src.asked() != asked+1 {
		t.Errorf("%d requests for a slot that was changed", src.asked()-asked)
	}
	known, err := os.ReadFile(path + knownSuffix)
	if err != nil {
		t.Fatal(err)
	}
	forged := pack.Chunk{ID: locs[0].ID, Loc: locs[1].Loc}
	for _, b := range [][]byte{nil, known[:len(known)/2+3], bytes.Repeat([]byte{7}, 2000)} {
		if err := os.WriteFile(path+knownSuffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c := cacheIn(t, dir, src, 1<<30)
		errs := c.ReadSlots(t.Context(), o, []pack.Chunk{forged}, [][]byte{make([]byte, 12288)}, false)
		if !errors.Is(errs[0], pack.ErrCorrupt) {
			t.Errorf("another chunk's bytes: %v", errs[0])
		}
		verified = 0
		for range 2 {
			read(t, c, src, o, locs)
			c = cacheIn(t, dir, src, 1<<30)
		}
		if verified > len(locs)+3 {
			t.Errorf("%d ids of %d were worked out", verified, len(locs))
		}
	}
	verified = 0
	read(t, cacheIn(t, dir, src, 1<<30), src, o, locs)
	if verified != 0 {
		t.Errorf("%d ids were worked out after all had been", verified)
	}
}

// TestAltered gets wrong bytes from the source some times, other ones each time: they are asked for again. An object
// that is wrong itself is not asked for for long.
func TestAltered(t *testing.T) {
	for _, times := range []int{1, 2, 5} {
		src := newFar()
		c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
		o, locs := src.put(22, 10_000, 10_000)
		src.spoil = times
		read(t, c, src, o, locs)
	}
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(22, 10_000)
	src.objects[o.Name][5] ^= 1
	errs := c.ReadSlots(t.Context(), o, locs, [][]byte{make([]byte, 0, locs[0].Loc.Slot())}, false)
	if !errors.Is(errs[0], pack.ErrCorrupt) || src.asked() > 3 {
		t.Errorf("damaged in the bucket: %v after %d requests", errs[0], src.asked())
	}
}

// TestOddThingsInTheFolder has a pipe, a link and a folder in the place of files, put there while the cache is open and
// before, and the folder deleted: nobody hangs, nothing elsewhere is written, what is asked for is given.
func TestOddThingsInTheFolder(t *testing.T) {
	src := newFar()
	outside := filepath.Join(t.TempDir(), "outside")
	for name, put := range map[string]func(path string) error{
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink(outside, path) },
		"folder":    func(path string) error { return os.Mkdir(path, 0o700) },
		"no folder": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		dir := filepath.Join(t.TempDir(), "cache")
		c := cacheIn(t, dir, src, 1<<30)
		o, locs := src.put(30, many(5, 10_000)...)
		path := filepath.Join(dir, o.Name.String())
		for _, again := range []bool{false, true} {
			os.Remove(path)
			if err := put(path); err != nil {
				t.Fatal(name, err)
			}
			if again {
				c = cacheIn(t, dir, src, 1<<30)
			}
			read(t, c, src, o, locs)
			asked := src.asked()
			read(t, c, src, o, locs)
			if src.asked() != asked {
				t.Errorf("%s: nothing is kept afterwards", name)
			}
		}
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("a link was written through")
	}
}
