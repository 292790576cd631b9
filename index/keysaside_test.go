package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// TestKeysSetAside repairs a store whose newest pack holds keys alone, and whose journal a repair has put aside and did
// not come to write anew: what it tells still counts. Such a pack is an empty file, as a crash leaves one that was
// being begun.
func TestKeysSetAside(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20), "inventory.img": []byte("a")}
	write(t, s, "a", files)
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(t.Context(), "a", []string{"golden"}, nil); err != nil { // in the journal of the new pack
		t.Fatal(err)
	}
	n := s.chunks.Packs.Active()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	packs := filepath.Join(s.dir, chunks.PacksFolder)
	if st, err := os.Stat(filepath.Join(packs, pack.Name(n))); err != nil || st.Size() > 0 {
		t.Fatalf("pack %d is no empty file: %v", n, err)
	}
	journal := filepath.Join(packs, pack.JournalName(n))
	if err := os.Rename(journal, journal+".set-aside-1"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)); err != nil {
		t.Fatal(err)
	}
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	mustHold(t, s, "golden", files)
	if _, err := os.Stat(journal); err != nil {
		t.Errorf("the journal was not written anew: %v", err)
	}
}
