package index

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// storeOnDisk makes a store on a small disk of which 32 MiB are kept free.
func storeOnDisk(t *testing.T, size string, o Options) (disk string, s *Store) {
	t.Helper()
	disk = smallDisk(t, size)
	o.FreeFloor = 32 << 20
	dir := filepath.Join(disk, "store")
	if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	return disk, openTestStore(t, dir, o)
}

// leave fills the disk up, so that this many bytes stay free.
func leave(t *testing.T, s *Store, disk string, bytes int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	free, err := s.chunks.Packs.Free()
	if err != nil {
		t.Fatal(err)
	}
	if free <= bytes {
		t.Fatalf("%d MiB are free, less than %d", free>>20, bytes>>20)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, free-bytes); err != nil {
		t.Fatal(err)
	}
}

// flushed flushes a draft with so many bytes left on the disk, then with a step more each time, until there is room. A
// seal after that has what it needs.
func flushed(t *testing.T, s *Store, disk string, d *drafts.Draft, left, step int64) (enough int64) {
	t.Helper()
	for ; ; left += step {
		leave(t, s, disk, left)
		err := d.Flush()
		if err == nil {
			return left
		}
		if fault.ClassOf(err) != fault.NoSpace {
			t.Fatal(err)
		}
	}
}

// What is written last, too little for a chunk, is stored by Flush: CRIU can still let the processes go on.
func TestFlushTellsOfAFullDisk(t *testing.T) {
	disk, s := storeOnDisk(t, "96m", testOptions(t))
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"pages-1.img": memory(1, 40<<10)})
	leave(t, s, disk, 40<<20)
	err := d.Flush()
	if fault.ClassOf(err) != fault.NoSpace || !strings.Contains(err.Error(), "pages-1.img") || fault.HintOf(err) == "" {
		t.Errorf("flushed on a full disk: %v (hint %q)", err, fault.HintOf(err))
	}
	if err := d.Abort(); err != nil {
		t.Error(err)
	}
	// Nothing is left to store here: but there would be no room for what is still to come.
	d = create(t, s, "b", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"core-1.img": make([]byte, 100)})
	if err := d.Flush(); fault.ClassOf(err) != fault.NoSpace {
		t.Errorf("flushed without room: %v", err)
	}
	if err := d.Abort(); err != nil {
		t.Error(err)
	}
}

// Files that end within a page have their last chunks stored by Seal: there is room for all of them, or Flush says so.
func TestFlushCountsTheRest(t *testing.T) {
	disk, s := storeOnDisk(t, "160m", testOptions(t))
	files := map[string][]byte{}
	rnd := rand.NewChaCha8([32]byte{9})
	for i := range 300 {
		b := make([]byte, 100_001)
		rnd.Read(b)
		files[fmt.Sprintf("ghost-file-%d.img", i)] = b
	}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, files)
	flushed(t, s, disk, d, 50<<20, 2<<20)
	mustSeal(t, d)
	mustHold(t, s, "a", files)
}

// A checkpoint is the same whether it is flushed before it is sealed or not, and goes on growing.
func TestFlushChangesNothing(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 3<<20+40<<10), "mm-1.img": memory(2, 10_000),
		"core-1.img": memory(3, 700), "empty.img": nil}
	write(t, s, "plain", files)
	before := s.Stats().BytesStored
	d := create(t, s, "flushed", drafts.CreateOptions{})
	fill(t, d, files)
	for range 2 {
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	mustSeal(t, d)
	if err := d.Flush(); err != nil {
		t.Errorf("once it is sealed: %v", err)
	}
	mustHold(t, s, "flushed", files)
	if after := s.Stats().BytesStored; after != before {
		t.Errorf("%d bytes were stored, %d once more", before, after-before)
	}
	// Writes after a flush.
	grown := memory(4, 1<<20+5000)
	d = create(t, s, "grown", drafts.CreateOptions{})
	g, err := d.Create("pages-1.img", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(5, 5))
	for off := 0; off < len(grown); {
		n := min(1+rnd.IntN(60_000), len(grown)-off)
		if _, err := g.WriteAt(grown[off:off+n], int64(off)); err != nil {
			t.Fatal(err)
		}
		if off += n; rnd.IntN(3) == 0 {
			if err := d.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	mustSeal(t, d)
	mustHold(t, s, "grown", map[string][]byte{"pages-1.img": grown})
	mustVerify(t, s, 0)
}

// Cutting anew takes room that a seal needs, or finds none: what was flushed is sealed all the same, by the first seal.
func TestNoRoomForCuts(t *testing.T) {
	o := testOptions(t)
	cut := false
	o.Cuts = func(fs.FS) (map[string][]int64, error) {
		cuts := map[string][]int64{}
		for i := range 4 {
			p := fmt.Sprintf("amdgpu-pages-%d.img", i)
			for off := int64(8 + 12<<10); cut && off < 8<<20; off += 200 << 10 {
				cuts[p] = append(cuts[p], off)
			}
		}
		return cuts, nil
	}
	disk, s := storeOnDisk(t, "512m", o)
	for left := int64(40 << 20); left <= 112<<20; left += 6 << 20 {
		name := fmt.Sprintf("left-%d", left>>20)
		files := map[string][]byte{}
		rnd := rand.NewChaCha8([32]byte{byte(left >> 20)})
		for i := range 4 {
			b := make([]byte, 8<<20+8)
			rnd.Read(b)
			files[fmt.Sprintf("amdgpu-pages-%d.img", i)] = b
		}
		// Some ends within a page are left to the seal.
		for i := range 50 {
			files[fmt.Sprintf("ghost-file-%d.img", i)] = files["amdgpu-pages-0.img"][i*150_000:][:100_001]
		}
		leave(t, s, disk, 250<<20)
		d := create(t, s, name, drafts.CreateOptions{})
		fill(t, d, files)
		leave(t, s, disk, left)
		if err := d.Flush(); err != nil {
			if fault.ClassOf(err) != fault.NoSpace || left > 64<<20 {
				t.Errorf("with %d MiB left: %v", left>>20, err)
			}
			if err := d.Abort(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		cut = true
		mustSeal(t, d)
		cut = false
		mustHold(t, s, name, files)
		leave(t, s, disk, 250<<20)
		if err := s.Remove(t.Context(), []string{name}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		mustVerify(t, s, 0)
	}
}

// A file of which something could not be stored can be written anew once there is room: another dump into the same
// draft begins with that.
func TestWrittenAnewAfterAFullDisk(t *testing.T) {
	disk, s := storeOnDisk(t, "128m", testOptions(t))
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"core-1.img": memory(1, 700)})
	f, err := d.Create("pages-1.img", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	leave(t, s, disk, 40<<20)
	b := make([]byte, 1<<20)
	rnd := rand.NewChaCha8([32]byte{7})
	var failed error
	for off := int64(0); failed == nil && off < 64<<20; off += int64(len(b)) {
		rnd.Read(b)
		_, failed = f.WriteAt(b, off)
	}
	if fault.ClassOf(failed) != fault.NoSpace {
		t.Fatalf("written on a full disk: %v", failed)
	}
	if _, err := d.Seal(t.Context()); fault.ClassOf(err) != fault.NoSpace {
		t.Errorf("sealed without what could not be stored: %v", err)
	}
	leave(t, s, disk, 72<<20)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"core-1.img": memory(1, 700), "pages-1.img": memory(2, 3<<20+5000)}
	if _, err := f.WriteAt(files["pages-1.img"], 0); err != nil {
		t.Fatal(err)
	}
	mustSeal(t, d)
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
}

// Many files that end within a page: a slot in a pack is of whole pages, and that counts.
func TestFlushCountsWholeSlots(t *testing.T) {
	disk, s := storeOnDisk(t, "192m", testOptions(t))
	files := map[string][]byte{}
	for i := range 276 {
		files[fmt.Sprintf("ghost-file-%d.img", i)] = memory(uint64(i), 60_001)
	}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, files)
	flushed(t, s, disk, d, 52<<20, 2<<20)
	mustSeal(t, d)
	mustHold(t, s, "a", files)
}

// One cut stores all of an overwritten file anew, whose chunks are no longer whole: that takes no room that is needed.
func TestCutOfAnOverwrittenFile(t *testing.T) {
	o := testOptions(t)
	o.Cuts = func(fs.FS) (map[string][]int64, error) { return map[string][]int64{"pages-1.img": {12 << 10}}, nil }
	disk, s := storeOnDisk(t, "400m", o)
	files := map[string][]byte{"ghost-file-1.img": memory(9, 60_001), "pages-1.img": memory(1, 64<<20)}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, files)
	f, err := d.Open("pages-1.img")
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < 64<<20; off += 100 << 10 {
		copy(files["pages-1.img"][off:], "changed")
		if _, err := f.WriteAt([]byte("changed"), int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	leave(t, s, disk, (32+56)<<20)
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	mustSeal(t, d)
	mustHold(t, s, "a", files)
}

// The index met a full disk while a draft was written, and there is no room to write it anew: Flush says so, not Seal.
func TestFlushTellsOfACutIndex(t *testing.T) {
	disk, s := storeOnDisk(t, "200m", testOptions(t))
	for i := range 2000 { // an index of some size
		put := chunks.Put{Key: fmt.Sprint("test", i), Payload: memory(uint64(i), 8192)}
		if err := s.chunks.PutLocal([]chunks.Put{put}); err != nil {
			t.Fatal(err)
		}
	}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"pages-1.img": memory(2, 4<<20)})
	fillWholly(t, filepath.Join(disk, "ballast"))
	var full error
	for i := 0; full == nil && i < 10000; i++ {
		full = s.chunks.PutLocal([]chunks.Put{{Key: "test", Payload: memory(uint64(i), 4096)}})
	}
	if fault.ClassOf(full) != fault.NoSpace || !s.chunks.DB.Cut() {
		t.Fatal(full)
	}
	leave(t, s, disk, (32+18)<<20)
	if err := d.Flush(); fault.ClassOf(err) != fault.NoSpace {
		t.Errorf("flushed: %v", err)
	}
	// A commit is in its journal, and the index does not take it. What is written of its key later is not undone.
	if err := s.chunks.Commit([]chunks.Put{{Key: "test", Payload: []byte("before")}}); err == nil {
		t.Error("the index took a commit")
	}
	if err := os.Remove(filepath.Join(disk, "ballast")); err != nil {
		t.Fatal(err)
	}
	if err := s.chunks.PutLocal([]chunks.Put{{Key: "test", Payload: []byte("after")}}); err != nil {
		t.Error(err)
	}
	if err := d.Flush(); err != nil {
		t.Errorf("flushed with room: %v", err)
	}
	if _, now, err := s.chunks.DB.Meta("test"); err != nil || string(now) != "after" {
		t.Errorf("the index has %.20q, %v", now, err)
	}
	mustSeal(t, d)
}

// The table and the segments of a draft go to a journal and to the index: that counts as well, and no more than it is.
func TestFlushCountsRecords(t *testing.T) {
	disk, s := storeOnDisk(t, "700m", testOptions(t))
	d := create(t, s, "links", drafts.CreateOptions{})
	for i := range 12_000 {
		if err := d.Symlink(strings.Repeat("t/", 2000), fmt.Sprintf("%s%d", strings.Repeat("d", 200), i)); err != nil {
			t.Fatal(err)
		}
	}
	if left := flushed(t, s, disk, d, 49<<20, 16<<20); left > 416<<20 {
		t.Errorf("flushed only with %d MiB left", left>>20)
	}
	mustSeal(t, d)
}
