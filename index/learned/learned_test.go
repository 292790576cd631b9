package learned

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func in(dir string) *Places {
	return New(Options{Dir: dir, Storage: storage.Disk{}, Logger: slog.New(slog.DiscardHandler)})
}

// refOf gives a pack object with room for perPack chunks of one page.
func refOf(n int) object.PackRef {
	p := object.PackRef{Size: perPack * chunk.PageSize}
	binary.BigEndian.PutUint32(p.Name[16:], uint32(n))
	return p
}

const perPack = 300

// idOf gives the id of a chunk; every seventh begins like others.
func idOf(n int) (id chunk.ID) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], uint64(n))
	rand.NewChaCha8(key).Read(id[:])
	if n%7 == 0 {
		clear(id[:12])
	}
	return id
}

func locOf(n, i int) pack.Loc {
	return pack.Loc{Page: uint32(i), Stored: 100, Raw: 200, CRC: uint32(n), Codec: chunk.S2}
}

// add tells of all chunks of a pack.
func add(t *testing.T, p *Places, n int) {
	t.Helper()
	var list []pack.Chunk
	for i := range perPack {
		loc := locOf(n, i)
		loc.Pack = 2
		list = append(list, pack.Chunk{ID: idOf(n*perPack + i), Loc: loc})
	}
	must(t, p.Add([]object.PackRef{refOf(-1), refOf(n)}, list))
}

// holds says how many of the chunks of a pack are found, and fails where one is found elsewhere.
func holds(t *testing.T, p *Places, n int) (found int) {
	t.Helper()
	for i := range perPack {
		ref, loc, ok := p.Find(idOf(n*perPack + i))
		if !ok {
			continue
		}
		found++
		loc.Pack = 0
		if ref != refOf(n) || loc != locOf(n, i) {
			t.Fatalf("chunk %d of pack %d is at %+v of %v", i, n, loc, ref)
		}
	}
	return found
}

// TestPlaces tells of packs little by little, and again, and finds all of them, also when the folder is opened anew.
// The files stay few. What does not stand any more is forgotten.
func TestPlaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "learned")
	p := in(dir)
	const packs = 60
	for n := range packs {
		add(t, p, n)
		if n%3 == 0 {
			add(t, p, n/2)
			p.Keep()
		}
		if got := holds(t, p, n); got != perPack {
			t.Fatalf("%d of %d chunks of pack %d are found at once", got, perPack, n)
		}
	}
	p.Keep()
	check := func(p *Places, from int) {
		t.Helper()
		for n := range packs {
			want := perPack
			if n < from {
				want = 0
			}
			if got := holds(t, p, n); got != want || p.Knows(refOf(n).Name) != (want > 0) {
				t.Errorf("%d of %d chunks of pack %d are found", got, want, n)
			}
		}
		if holds(t, p, packs) > 0 || p.Knows(refOf(packs).Name) {
			t.Error("what nobody told of is found")
		}
	}
	check(p, 0)
	must(t, p.Close())
	files, err := os.ReadDir(dir)
	must(t, err)
	if len(files) > 4 {
		t.Errorf("%d files", len(files))
	}
	p = in(dir)
	check(p, 0)
	var total int
	for _, f := range p.files {
		total += f.records
	}
	if total > packs*perPack*3/2 {
		t.Errorf("%d places are kept of %d", total, packs*perPack)
	}
	n := p.Forget(func(n object.Name) bool { return binary.BigEndian.Uint32(n[16:]) >= 40 })
	if n != 40 {
		t.Errorf("%d packs are forgotten", n)
	}
	check(p, 40)
	must(t, p.Close())
	p = in(dir)
	check(p, 40)
	must(t, p.Close())
}

// TestFindIn knows chunks in two packs, in one file, in two, and in none yet: both places are found.
func TestFindIn(t *testing.T) {
	const first, second = 0, 100
	both := func(p *Places, n int) { // the chunks of the first pack
		t.Helper()
		list := make([]pack.Chunk, perPack)
		for i := range list {
			list[i] = pack.Chunk{ID: idOf(i), Loc: locOf(n, i)}
			list[i].Loc.Pack = 1
		}
		must(t, p.Add([]object.PackRef{refOf(n)}, list))
	}
	for _, c := range []struct {
		name         string
		between, end bool // kept
	}{{"in memory", false, false}, {"in one file", false, true}, {"in two files", true, true}} {
		p := in(filepath.Join(t.TempDir(), "learned"))
		if both(p, first); c.between {
			p.Keep()
		}
		if both(p, second); c.end {
			p.Keep()
		}
		for _, n := range []int{first, second} {
			may := func(name object.Name) bool { return name == refOf(n).Name }
			for i := range perPack {
				ref, loc, ok := p.FindIn(idOf(i), may)
				if loc.Pack = 0; !ok || ref != refOf(n) || loc != locOf(n, i) {
					t.Fatalf("%s: chunk %d in pack %d: %v at %+v, %v", c.name, i, n, ref, loc, ok)
				}
			}
		}
		if _, _, ok := p.FindIn(idOf(0), func(object.Name) bool { return false }); ok {
			t.Errorf("%s: found in a pack that may not be used", c.name)
		}
		must(t, p.Close())
	}
}

// TestDamaged flips each part of a file: what is found is right, and a file that is not as it was written goes. A file
// that was being written goes as well.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	p := in(dir)
	for n := range 3 {
		add(t, p, n)
	}
	p.Keep()
	must(t, p.Close())
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	if len(names) != 1 {
		t.Fatal(names)
	}
	good, err := os.ReadFile(names[0])
	must(t, err)
	lost := 0
	for at := 0; at < len(good); at += 1 + len(good)/97 {
		bad := append([]byte(nil), good...)
		bad[at] ^= 4
		must(t, os.WriteFile(names[0], bad, 0o600))
		must(t, os.WriteFile(names[0]+".new", bad[:at], 0o600))
		p := in(dir)
		found := 0
		for n := range 3 {
			found += holds(t, p, n)
		}
		p.Keep()
		must(t, p.Close())
		if found == 3*perPack {
			t.Errorf("a flipped bit at %d of %d was not noticed", at, len(good))
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("damaged at %d, %d files stay", at, len(left))
		}
		lost++
	}
	for _, n := range []int{0, 5, headerSize, len(good) - 1} {
		must(t, os.WriteFile(names[0], good[:n], 0o600))
		p := in(dir)
		if holds(t, p, 0) > 0 {
			t.Errorf("cut to %d bytes, and read", n)
		}
		must(t, p.Close())
	}
}

// TestMerged puts more together than is gathered in memory.
func TestMerged(t *testing.T) {
	p := in(t.TempDir())
	defer p.Close()
	p.gather = 1000
	const packs = (mostFiles+20)*1000/perPack + 7
	for n := range packs {
		add(t, p, n)
	}
	p.Keep()
	if len(p.files) != 1 || p.files[0].records != packs*perPack {
		t.Fatalf("%d files", len(p.files))
	}
	for n := 0; n < packs; n += 11 {
		if got := holds(t, p, n); got != perPack {
			t.Errorf("%d of %d chunks of pack %d", got, perPack, n)
		}
	}
}

// TestFull has no room: nothing is kept, and the machine goes on.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	p := New(Options{Dir: dir, Floor: 1 << 62, Storage: storage.Disk{}, Logger: slog.New(slog.DiscardHandler)})
	add(t, p, 0)
	p.Keep()
	if holds(t, p, 0) > 0 || p.Knows(refOf(0).Name) {
		t.Error("known, and kept nowhere")
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%d files are left", len(left))
	}
	must(t, p.Close())
}

// FuzzFile reads anything as a file of places.
func FuzzFile(f *testing.F) {
	p := in(f.TempDir())
	must(f, p.Add([]object.PackRef{refOf(1)}, []pack.Chunk{
		{ID: idOf(1), Loc: pack.Loc{Pack: 1, Page: 1, Stored: 10, Raw: 10}},
		{ID: idOf(7), Loc: pack.Loc{Pack: 1, Stored: 10, Raw: 10}},
	}))
	p.Keep()
	seed, err := os.ReadFile(p.files[0].Name())
	must(f, err)
	must(f, p.Close())
	f.Add(seed)
	f.Add(seed[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "000000000001"+suffix), b, 0o600))
		p := in(dir)
		for n := range 8 {
			if ref, loc, ok := p.Find(idOf(n)); ok && loc.Offset()+loc.Slot() > ref.Size {
				t.Errorf("%+v is not in %v", loc, ref)
			}
		}
		add(t, p, 3)
		p.Keep()
		must(t, p.Close())
	})
}

// A file that cannot be read for a moment is as good as none, and stays for the next process.
func TestReadFailsOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "learned")
	p := in(dir)
	add(t, p, 1)
	p.Keep()
	must(t, p.Close())
	for k := 1; ; k++ {
		left := k
		p := New(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler),
			Storage: &storage.Faulty{Storage: storage.Disk{}, Rule: func(storage.Call) storage.Fault {
				if left--; left == 0 {
					return storage.Fault{Kind: storage.Fail}
				}
				return storage.Fault{}
			}}})
		holds(t, p, 1)
		must(t, p.Close())
		p = in(dir)
		if n := holds(t, p, 1); n != perPack {
			t.Fatalf("call %d failed once: %d chunks of %d are known", k, n, perPack)
		}
		must(t, p.Close())
		if left > 0 { // every call has failed
			return
		}
	}
}
