package index

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// afterPowerCut gives the folder of a store whose power was cut right after "b" was sealed: the packs have all that was
// synced, which is all, and the index what it had at its last sync. No byte is damaged yet. journal is that of pack 1
// as it was.
func afterPowerCut(t *testing.T) (dir string, all map[string]map[string][]byte, journal []byte) {
	o := testOptions(t)
	synced := ""
	o.Tuning.IndexSynced = func(from string) {
		synced = filepath.Join(t.TempDir(), "index")
		if err := os.CopyFS(synced, os.DirFS(from)); err != nil {
			t.Error(err)
		}
	}
	s := newTestStore(t, o)
	all = map[string]map[string][]byte{
		"a": {"pages-1.img": memory(1, 1<<20)},
		"b": {"pages-1.img": memory(2, 1<<20)},
	}
	write(t, s, "a", all["a"])
	write(t, s, "b", all["b"])
	dir = filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(dir, os.DirFS(s.Dir())); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, chunks.IndexFolder)
	if err := errors.Join(os.RemoveAll(index), os.CopyFS(index, os.DirFS(synced))); err != nil {
		t.Fatal(err)
	}
	o.Tuning.IndexSynced = nil
	return dir, all, packFiles(t, dir)[pack.JournalName(1)]
}

// lastFrameHarms are done to the last frame of a journal, which tells of "b".
var lastFrameHarms = map[string]func(t *testing.T, path string, b []byte){
	"flipped": func(t *testing.T, path string, b []byte) { flip(t, path, int64(lastFrame(t, b)+20)) },
	"cut": func(t *testing.T, path string, b []byte) {
		if err := os.Truncate(path, int64(len(b)-1)); err != nil {
			t.Fatal(err)
		}
	},
}

// TestDamageBehindAMarkThatAPowerCutTook: the mark of a sealed checkpoint's frame is not on the disk when the seal
// returns. A power cut takes it, then that frame is damaged. It was promised, so it is damage, to be reported and kept.
func TestDamageBehindAMarkThatAPowerCutTook(t *testing.T) {
	for name, harm := range lastFrameHarms {
		t.Run(name, func(t *testing.T) {
			dir, all, journal := afterPowerCut(t)
			harm(t, filepath.Join(dir, chunks.PacksFolder, pack.JournalName(1)), journal)
			o := testOptions(t)
			s := openTestStore(t, dir, o)
			for name, files := range all {
				mustHold(t, s, name, files)
			}
			if list, err := s.SetAside(); err != nil || len(list) == 0 {
				t.Errorf("a damaged frame of a sealed checkpoint is not reported: %v, %v", list, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			res, err := Repair(t.Context(), dir, o)
			t.Logf("repair: %+v, %v", res, err)
			s = openTestStore(t, dir, o)
			for name, files := range all {
				mustHold(t, s, name, files)
			}
			gc, err := s.GC(t.Context(), upkeep.GCOptions{})
			t.Logf("gc: %+v, %v", gc, err)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			putBack(t, dir, pack.JournalName(1), journal)
			res, err = Repair(t.Context(), dir, o)
			t.Logf("repair with the journal put back: %+v, %v", res, err)
			s = openTestStore(t, dir, o)
			for name, files := range all {
				mustHold(t, s, name, files)
			}
		})
	}
}

// TestCutJournalUnderGivenUpIndex: an index that was given up and does not open, and the journal of a pack that was
// sealed long ago has lost its last bytes. It is put aside, so that nothing is given back until
// the bytes are back.
func TestCutJournalUnderGivenUpIndex(t *testing.T) {
	for _, n := range []uint32{1, 3} {
		t.Run(pack.JournalName(n), func(t *testing.T) {
			s, all := threeCheckpoints(t)
			name := pack.JournalName(n)
			whole := packFiles(t, s.dir)[name]
			if err := os.Truncate(filepath.Join(s.dir, chunks.PacksFolder, name), int64(len(whole)-1)); err != nil {
				t.Fatal(err)
			}
			index := filepath.Join(s.dir, chunks.IndexFolder)
			if err := errors.Join(os.Remove(filepath.Join(index, "SOUND")),
				os.WriteFile(filepath.Join(index, "MANIFEST"), make([]byte, 64), 0o600)); err != nil {
				t.Fatal(err)
			}
			s = openTestStore(t, s.dir, s.o)
			list, err := s.SetAside()
			if err != nil || len(list) != 1 {
				t.Errorf("set aside: %+v, %v", list, err)
			}
			gc, err := s.GC(t.Context(), upkeep.GCOptions{})
			t.Logf("gc: %+v, %v", gc, err)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			putBack(t, s.dir, name, whole)
			res, err := Repair(t.Context(), s.dir, s.o)
			t.Logf("repair with the bytes put back: %+v, %v", res, err)
			s = openTestStore(t, s.dir, s.o)
			for name, files := range all {
				mustHold(t, s, name, files)
			}
		})
	}
}

// TestDeadSlotsComeBack: a collection has journalled slots as dead and given them back. Then the journal loses the last
// byte of that frame, and the index was given up and does not open. What was given back must not be taken for stored:
// the next dump of the same content would be sealed over holes.
func TestDeadSlotsComeBack(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	x := map[string][]byte{"f": memory(1, 1<<20)}
	kept := map[string][]byte{"f": memory(2, 1<<20)}
	write(t, s, "x", x)
	write(t, s, "kept", kept)
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "next", map[string][]byte{"f": memory(3, 1<<16)})
	if err := s.Remove(t.Context(), []string{"x"}); err != nil {
		t.Fatal(err)
	}
	if gc, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || gc.Reclaimed == 0 {
		t.Fatalf("%+v, %v", gc, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, chunks.PacksFolder, pack.JournalName(1))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(s.dir, chunks.IndexFolder)
	if err := errors.Join(os.Truncate(path, int64(len(b)-1)), os.Remove(filepath.Join(index, "SOUND")),
		os.WriteFile(filepath.Join(index, "MANIFEST"), make([]byte, 64), 0o600)); err != nil {
		t.Fatal(err)
	}
	s = openTestStore(t, s.dir, s.o)
	list, err := s.SetAside()
	t.Logf("set aside: %+v, %v", list, err)
	mustHold(t, s, "kept", kept)
	write(t, s, "again", x)
	mustHold(t, s, "again", x)
}

// TestMoveThenBuryThenPowerCut: optimize gives chunks other places in the same pack, which does not sync the index.
// A collection journals the old slots as dead. A power cut then leaves the index as of its last sync, with the old
// places, and the journal with both records.
func TestMoveThenBuryThenPowerCut(t *testing.T) {
	o := testOptions(t)
	base, image := "", ""
	armed, over := false, false
	o.Tuning.IndexSynced = func(dir string) {
		if over = armed; over {
			return
		}
		base = filepath.Join(t.TempDir(), "base")
		if err := os.CopyFS(base, os.DirFS(dir)); err != nil {
			t.Error(err)
		}
	}
	o.Tuning.IndexWrote = func(dir string) {
		if !armed || over {
			return
		}
		// The last is of the moment after the old slots were journalled as dead
		image = filepath.Join(t.TempDir(), "store")
		if err := os.CopyFS(image, os.DirFS(filepath.Dir(dir))); err != nil {
			t.Error(err)
		}
		index := filepath.Join(image, "index")
		if err := errors.Join(os.RemoveAll(index), os.CopyFS(index, os.DirFS(base))); err != nil {
			t.Error(err)
		}
	}
	s := newTestStore(t, o)
	files := map[string][]byte{"f": heap(1, 2<<20)}
	write(t, s, "kept", files)
	res, err := s.Optimize(t.Context(), upkeep.OptimizeOptions{})
	if err != nil || res.Rewritten == 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	armed = true
	gc, err := s.GC(t.Context(), upkeep.GCOptions{})
	if err != nil || gc.DeadChunks == 0 || image == "" {
		t.Fatalf("%+v, %v", gc, err)
	}
	mustHold(t, s, "kept", files)
	o.Tuning.IndexSynced, o.Tuning.IndexWrote = nil, nil
	after := openTestStore(t, image, o)
	mustHold(t, after, "kept", files)
	mustVerify(t, after, 0)
}
