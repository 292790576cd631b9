package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// A removed checkpoint whose pull from a bucket was begun and given up stays removed: the record of its removal
// outlives the pack whose journal has it.
func TestRemovedStaysRemovedAfterAPull(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	x, err := s.Info("x")
	must(t, err)
	write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.chunks.Packs.Roll())
	write(t, s, "gone", map[string][]byte{"f": memory(3, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"x"}))
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", map[string][]byte{"f": memory(4, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"gone"}))
	key := manifest.RootKey(x.ID)
	must(t, s.chunks.PutLocal([]chunks.Put{{Key: key, Payload: []byte("a pull")}}))
	_, err = s.GC(t.Context(), GCOptions{}) // the pull goes on meanwhile
	must(t, err)
	must(t, s.chunks.PutLocal([]chunks.Put{{Key: key}}))
	_, err = s.GC(t.Context(), GCOptions{})
	must(t, err)
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)))
	_, err = Repair(t.Context(), s.dir, s.o)
	must(t, err)
	s = openTestStore(t, s.dir, s.o)
	if _, err := s.Info("x"); ClassOf(err) != NotFound {
		t.Errorf("the removed checkpoint is back: %v", err)
	}
	if all, err := s.Names(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%d checkpoints of 2, %v", len(all), err)
	}
}
