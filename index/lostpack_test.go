package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// TestNothingIsBuiltOnALostPack writes content again whose pack was removed, or cut: it is stored anew, and what was
// stored before is whole again.
func TestNothingIsBuiltOnALostPack(t *testing.T) {
	for name, lose := range map[string]func(packs string) error{
		"pack": func(packs string) error { return os.Remove(filepath.Join(packs, pack.Name(1))) },
		"both": func(packs string) error {
			if err := os.Remove(filepath.Join(packs, pack.JournalName(1))); err != nil {
				return err
			}
			return os.Remove(filepath.Join(packs, pack.Name(1)))
		},
		"end": func(packs string) error { return os.Truncate(filepath.Join(packs, pack.Name(1)), 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			s, all := threeCheckpoints(t)
			if err := lose(filepath.Join(s.Dir(), chunks.PacksFolder)); err != nil {
				t.Fatal(err)
			}
			s = openTestStore(t, s.Dir(), testOptions(t))
			write(t, s, "again", all["a"])
			mustHold(t, s, "again", all["a"])
			mustHold(t, s, "a", all["a"])
			mustHold(t, s, "c", all["c"])
			s = reopen(t, s)
			mustHold(t, s, "again", all["a"])
		})
	}
}

// TestIndexLeftOverIsNotTakenForTheTruth leaves a complete new index beside the one in its place, as a crash between
// the two does. Later, the index is lost: the store says so, and does not open on what was true long ago.
func TestIndexLeftOverIsNotTakenForTheTruth(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	dir := filepath.Join(s.Dir(), chunks.IndexFolder)
	write(t, s, "a", map[string][]byte{"inventory.img": []byte("a")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir+".new", os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if sound, err := keys.IsSound(dir + ".new"); err != nil || !sound {
		t.Fatal("the copy is not complete")
	}
	s = openTestStore(t, s.Dir(), testOptions(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), s.Dir(), testOptions(t)); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("opened without an index: %v", err)
	}
}

// TestPathsThatLookLikePatterns opens and fills stores in folders whose names file name patterns are made of.
func TestPathsThatLookLikePatterns(t *testing.T) {
	for _, name := range []string{"a[1", "b[1]*", "c\n?"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := Init(dir, InitOptions{}); err != nil {
			t.Fatal(err)
		}
		s := openTestStore(t, dir, testOptions(t))
		write(t, s, "a", map[string][]byte{"inventory.img": []byte("a")})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		unborn := filepath.Join(dir, chunks.IndexFolder, "000900.vlog")
		if err := os.WriteFile(unborn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s = openTestStore(t, dir, testOptions(t))
		mustHold(t, s, "a", map[string][]byte{"inventory.img": []byte("a")})
	}
}
