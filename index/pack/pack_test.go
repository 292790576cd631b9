package pack

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() Options {
	return Options{Store: [16]byte{1}, PackSize: 1 << 20, FreeFloor: 1, Logger: slog.New(slog.DiscardHandler)}
}

func openSet(t testing.TB, dir string) *Set {
	t.Helper()
	s, err := Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// pages gives an aligned buffer with room to the end of its last page, as the store's workers have.
func pages(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, int(padded(int64(n))), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b[:n]
}

// fill appends chunks of the given lengths and commits them with kvs.
func fill(t testing.TB, s *Set, kvs []KV, lengths ...int) (chunks []Chunk, contents [][]byte) {
	t.Helper()
	for i, n := range lengths {
		b := pages(t, n)
		rand.NewChaCha8([32]byte{byte(i), byte(n), byte(n >> 8)}).Read(b)
		if i%2 == 1 {
			b = bytes.Clone(b) // neither aligned nor with room behind
		}
		id := chunk.Sum(b)
		loc, err := s.Append(id, b, n, chunk.Raw)
		if err != nil {
			t.Fatal(err)
		}
		chunks, contents = append(chunks, Chunk{id, loc}), append(contents, bytes.Clone(b))
	}
	if _, err := s.Commit(kvs); err != nil {
		t.Fatal(err)
	}
	return chunks, contents
}

func readAll(t testing.TB, s *Set, past bool, chunks []Chunk) ([][]byte, []error) {
	t.Helper()
	locs, bufs := make([]Loc, len(chunks)), make([][]byte, len(chunks))
	for i, c := range chunks {
		locs[i], bufs[i] = c.Loc, pages(t, int(c.Loc.Slot()))
	}
	errs := s.ReadSlots(locs, bufs, past)
	for i, c := range chunks {
		bufs[i] = bufs[i][:c.Loc.Stored]
	}
	return bufs, errs
}

func TestAppendCommitReadAgain(t *testing.T) {
	dir := t.TempDir()
	s := openSet(t, dir)
	kv := KV{Seq: 7, Key: "ckpt/x", Value: []byte("root")}
	chunks, contents := fill(t, s, []KV{kv}, 1, 4095, 4096, 4097, 100000)
	for _, past := range []bool{true, false} {
		got, errs := readAll(t, s, past, chunks)
		for i := range chunks {
			if errs[i] != nil || !bytes.Equal(got[i], contents[i]) {
				t.Errorf("slot %d, past the cache %v: %v", i, past, errs[i])
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSet(t, dir)
	var found []Chunk
	var kvs []KV
	end, bad, err := s.Read(1, 0, func(r Record) error {
		if r.Chunk != nil {
			found = append(found, *r.Chunk)
		}
		if r.KV != nil {
			kvs = append(kvs, KV{r.KV.Seq, r.KV.Key, bytes.Clone(r.KV.Value), r.KV.Delete})
		}
		return nil
	})
	size, _ := s.JournalSize(1)
	if err != nil || len(bad) > 0 || end != size {
		t.Errorf("the journal: end %d of %d, %v, %v", end, size, bad, err)
	}
	if fmt.Sprint(found) != fmt.Sprint(chunks) || fmt.Sprint(kvs) != fmt.Sprint([]KV{kv}) {
		t.Errorf("the journal tells of %v and %v", found, kvs)
	}
}

func TestUncommittedIsNotInTheJournal(t *testing.T) {
	s := openSet(t, t.TempDir())
	fill(t, s, nil, 5000)
	if _, err := s.Append(chunk.ID{9}, pages(t, 10), 10, chunk.Raw); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, _, err := s.Read(1, 0, func(r Record) error {
		if r.Chunk != nil {
			n++
		}
		return nil
	}); err != nil || n != 1 {
		t.Errorf("%d chunks, %v", n, err)
	}
}

func TestOneDamagedSlotDoesNotHurtItsNeighbours(t *testing.T) {
	s := openSet(t, t.TempDir())
	chunks, contents := fill(t, s, nil, 5000, 5000, 5000)
	for _, at := range []int64{chunks[1].Loc.Offset(), chunks[1].Loc.Offset() + 8191} { // content, padding
		flip(t, s.PackPath(1), at)
		got, errs := readAll(t, s, false, chunks)
		for i := range chunks {
			if i == 1 {
				if !errors.Is(errs[i], ErrCorrupt) {
					t.Errorf("byte %d flipped: %v", at, errs[i])
				}
			} else if errs[i] != nil || !bytes.Equal(got[i], contents[i]) {
				t.Errorf("neighbour %d: %v", i, errs[i])
			}
		}
		flip(t, s.PackPath(1), at)
	}
	if err := os.Truncate(s.PackPath(1), chunks[2].Loc.Offset()+100); err != nil {
		t.Fatal(err)
	}
	_, errs := readAll(t, s, false, chunks)
	if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], ErrCorrupt) {
		t.Errorf("a pack cut short: %v", errs)
	}
}

func flip(t testing.TB, path string, off int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[off] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRollPunchDrop(t *testing.T) {
	s := openSet(t, t.TempDir())
	chunks, _ := fill(t, s, nil, 600<<10, 600<<10, 600<<10)
	if a := s.Active(); a != 3 {
		t.Fatalf("three chunks of 600 KiB in packs of 1 MiB end in pack %d", a)
	}
	slot := Range{0, chunks[0].Loc.Slot()}
	if n, err := s.Allocated(1, []Range{slot}); err != nil || n != slot.Len {
		t.Errorf("%d bytes allocated, %v", n, err)
	}
	if _, err := s.Kill(1, chunks[:1]); err != nil {
		t.Fatal(err)
	}
	if err := s.Punch(1, []Range{slot}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Allocated(1, []Range{slot}); err != nil || n != 0 {
		t.Errorf("after punching: %d bytes allocated, %v", n, err)
	}
	dead := 0
	if _, _, err := s.Read(1, 0, func(r Record) error {
		if r.Dead != nil {
			dead++
		}
		return nil
	}); err != nil || dead != 1 {
		t.Errorf("%d dead chunks, %v", dead, err)
	}
	if err := s.Drop(3); err == nil {
		t.Error("the active pack was dropped")
	}
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	if packs, err := s.Packs(); err != nil || fmt.Sprint(packs) != "[2 3]" {
		t.Errorf("left: %v, %v", packs, err)
	}
}

func TestRewriteJournal(t *testing.T) {
	s := openSet(t, t.TempDir())
	chunks, _ := fill(t, s, []KV{{Seq: 1, Key: "a", Value: make([]byte, 100000)}}, 5000, 6000)
	before, _ := s.JournalSize(1)
	if _, err := s.RewriteJournal(1, chunks[1:], []KV{{Seq: 2, Key: "b", Delete: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit([]KV{{Seq: 3, Key: "c", Value: []byte("later")}}); err != nil {
		t.Fatal(err)
	}
	var seen string
	_, bad, err := s.Read(1, 0, func(r Record) error {
		switch {
		case r.Chunk != nil:
			seen += fmt.Sprint(r.Chunk.Loc.Raw, " ")
		case r.KV != nil:
			seen += fmt.Sprint(r.KV.Key, r.KV.Delete, " ")
		}
		return nil
	})
	if after, _ := s.JournalSize(1); err != nil || len(bad) > 0 || seen != "6000 btrue cfalse " || after >= before {
		t.Errorf("%q, %v, %v, %d → %d bytes", seen, bad, err, before, after)
	}
}

func TestDamageInAJournal(t *testing.T) {
	dir := t.TempDir()
	s := openSet(t, dir)
	var ends []int64
	for i := range 4 {
		fill(t, s, nil, 5000+i)
		end, _ := s.JournalSize(1)
		ends = append(ends, end)
	}
	count := func() (n int, end int64, bad []Damage, err error) {
		end, bad, err = s.Read(1, 0, func(r Record) error {
			if r.Chunk != nil {
				n++
			}
			return nil
		})
		return n, end, bad, err
	}
	flip(t, s.JournalPath(1), ends[1]+20)
	if n, end, bad, err := count(); err != nil || n != 3 || end != ends[3] || len(bad) != 1 || bad[0].Off != ends[1] ||
		bad[0].Off+bad[0].Len != ends[2] {
		t.Errorf("damage in the middle: %d chunks, end %d, %+v, %v", n, end, bad, err)
	}
	flip(t, s.JournalPath(1), ends[1]+20)
	flip(t, s.JournalPath(1), ends[3]-1)
	if n, end, bad, err := count(); err != nil || n != 3 || end != ends[2] || len(bad) != 1 ||
		bad[0].Off+bad[0].Len != ends[3] {
		t.Errorf("a torn tail: %d chunks, end %d, %+v, %v", n, end, bad, err)
	}
	s.Close()
	o := options()
	o.Store = [16]byte{2}
	other, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, _, err := other.Read(1, 0, func(Record) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another store's journal: %v", err)
	}
	later := encodeFrames(frameWriter{}, &Header{Version: Version + 1, Pack: 1, Store: [16]byte{2}}, nil, nil, nil)
	if err := os.WriteFile(other.JournalPath(1), later, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Read(1, 0, func(Record) error { return nil }); !errors.Is(err, ErrVersion) {
		t.Errorf("a later version's journal: %v", err)
	}
}

func TestPackWithoutAJournalStays(t *testing.T) {
	dir := t.TempDir()
	s := openSet(t, dir)
	chunks, contents := fill(t, s, nil, 5000)
	s.Close()
	journal, err := os.ReadFile(s.JournalPath(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.JournalPath(1)); err != nil {
		t.Fatal(err)
	}
	s = openSet(t, dir)
	if orphans, err := s.Orphans(); err != nil || len(orphans) != 1 || orphans[0] != 1 {
		t.Errorf("orphans %v, %v", orphans, err)
	}
	if got, errs := readAll(t, s, false, chunks); errs[0] != nil || !bytes.Equal(got[0], contents[0]) {
		t.Errorf("its slots cannot be read: %v", errs)
	}
	fill(t, s, nil, 5000)
	if s.Active() != 2 {
		t.Errorf("its number was used again")
	}
	if err := os.WriteFile(s.JournalPath(1), journal, 0o600); err != nil {
		t.Fatal(err)
	}
	if packs, err := s.Packs(); err != nil || len(packs) != 2 {
		t.Errorf("packs %v, %v", packs, err)
	}
}

// A crash in the middle of a drop leaves the journal, which tells that all was dead, and the drop is done again.
func TestDropIsDoneAgain(t *testing.T) {
	dir := t.TempDir()
	s := openSet(t, dir)
	chunks, _ := fill(t, s, nil, 5000)
	if _, err := s.Kill(1, chunks); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.Remove(s.PackPath(1)); err != nil {
		t.Fatal(err)
	}
	s = openSet(t, dir)
	if s.Exists(1) {
		t.Error("it exists")
	}
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// What lies behind the journal's last frame, or behind the last slot that it lists, stays: the next pack takes the
// appends.
func TestNothingIsCutOff(t *testing.T) {
	for _, ext := range []string{"pack", "journal"} {
		dir := t.TempDir()
		s := openSet(t, dir)
		chunks, _ := fill(t, s, nil, 5000)
		end, err := s.JournalSize(1)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		path := filepath.Join(dir, "00000001."+ext)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, "a torn write"...)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s = openSet(t, dir)
		if ext == "journal" {
			s.EndAt(1, end)
		}
		if resumed, err := s.Resume(1, chunks[0].Loc.Slot(), end); resumed || err != nil {
			t.Errorf("%s: resumed %v, %v", ext, resumed, err)
		}
		fill(t, s, nil, 5000)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: it was changed (%v)", ext, err)
		}
		// A frame takes the place of what a crash left half written.
		if _, err := s.Kill(1, chunks); err != nil {
			t.Fatal(err)
		}
		dead := 0
		if _, bad, err := s.Read(1, 0, func(r Record) error {
			if r.Dead != nil {
				dead++
			}
			return nil
		}); err != nil || len(bad) > 0 || dead != 1 {
			t.Errorf("%s: %d dead, %+v, %v", ext, dead, bad, err)
		}
	}
}

func TestTheFloorIsKeptFree(t *testing.T) {
	o := options()
	o.FreeFloor = 1 << 60
	s, err := Open(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Append(chunk.ID{1}, pages(t, 10), 10, chunk.Raw); !errors.Is(err, ErrNoSpace) {
		t.Errorf("%v", err)
	}
}

func FuzzReadJournal(f *testing.F) {
	h := Header{Version: Version, Pack: 1, Store: [16]byte{1}}
	whole := encodeFrames(frameWriter{}, &h, []Chunk{{ID: chunk.ID{1}, Loc: Loc{Pack: 1, Stored: 5, Raw: 5}}},
		[]Chunk{{ID: chunk.ID{2}}},
		[]KV{{Seq: 1, Key: "ckpt/a", Value: []byte("v")}, {Seq: 2, Key: "ckpt/b", Delete: true}})
	f.Add(whole)
	f.Add(append(bytes.Clone(whole[:len(whole)-3]), whole...))
	f.Add([]byte("GPJF\xff\xff\xff\xff"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		path := dir + "/j"
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		end, bad, err := ReadJournal(storage.Disk{}, path, 0, int64(len(b)), func(Record) error { return nil })
		if err != nil {
			return
		}
		var damaged int64
		for _, d := range bad {
			damaged += d.Len
		}
		if end > int64(len(b)) || damaged > int64(len(b)) {
			t.Fatalf("end %d, %d damaged bytes of %d", end, damaged, len(b))
		}
	})
}

// TestWhatIsCommittedCanBeRead: every frame is one that a reader takes, however large the keys are and however they
// follow each other.
func TestWhatIsCommittedCanBeRead(t *testing.T) {
	s := openSet(t, t.TempDir())
	var kvs []KV
	for i := range 9 {
		kvs = append(kvs,
			KV{Seq: uint64(i), Key: strings.Repeat("k", MaxKey), Value: make([]byte, min(MaxValue, 1<<(2*i+8)-i))})
	}
	kvs = append(kvs, KV{Key: "a", Value: make([]byte, frameTarget-100)}, KV{Key: "b", Value: make([]byte, MaxValue)})
	if _, err := s.Commit(kvs); err != nil {
		t.Fatal(err)
	}
	n := 0
	_, bad, err := s.Read(1, 0, func(r Record) error {
		if r.KV != nil {
			n++
		}
		return nil
	})
	if err != nil || len(bad) > 0 || n != len(kvs) {
		t.Errorf("%d of %d keys, %v, %v", n, len(kvs), bad, err)
	}
	for _, kv := range []KV{{Key: "a", Value: make([]byte, MaxValue+1)}, {Key: strings.Repeat("k", MaxKey+1)}} {
		if _, err := s.Commit([]KV{kv}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("commit: %v", err)
		}
		if _, err := s.RewriteJournal(1, nil, []KV{kv}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("rewrite: %v", err)
		}
	}
}

// TestImpossibleLocations: a location that no Append gives is refused where it is decoded, in the index and in
// journals.
func TestImpossibleLocations(t *testing.T) {
	good := Loc{Pack: 1, Page: 2, Stored: 5000, Raw: 9000, Codec: chunk.S2}
	if l, err := DecodeLoc(AppendLoc(nil, good)); err != nil || l != good {
		t.Fatal(l, err)
	}
	for name, change := range map[string]func(*Loc){
		"no pack":         func(l *Loc) { l.Pack = 0 },
		"pack too high":   func(l *Loc) { l.Pack = MaxNumber + 1 },
		"page too high":   func(l *Loc) { l.Page = 1<<32 - 1 },
		"nothing stored":  func(l *Loc) { l.Stored = 0 },
		"no contents":     func(l *Loc) { l.Raw = 0 },
		"enormous":        func(l *Loc) { l.Raw = maxChunk + 1 },
		"stored larger":   func(l *Loc) { l.Stored = l.Raw + 1 },
		"raw of two ways": func(l *Loc) { l.Codec = chunk.Raw },
	} {
		bad := good
		change(&bad)
		if l, err := DecodeLoc(AppendLoc(nil, bad)); err == nil || l != (Loc{}) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if err := decodeRecords(appendChunk(nil, recChunk, Chunk{Loc: bad}),
			func(Record) error { return nil }); err == nil {
			t.Errorf("%s: taken from a journal", name)
		}
	}
	dir := t.TempDir()
	s := openSet(t, dir)
	fill(t, s, nil, 100)
	other := good
	other.Pack = 7
	if _, err := s.writeFrames(1, encodeFrames(frameWriter{}, nil, []Chunk{{Loc: other}}, nil, nil)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Read(1, 0, func(Record) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a journal tells of another pack: %v", err)
	}
}
