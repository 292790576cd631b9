package index

import (
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// A part of the old index gets lost while repair works: what a damaged journal lacks is not to be taken for all that
// the index has told of, and the journal has to stay.
func TestRepairWhileTheOldIndexIsLost(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": memory(1, 1<<20)})
	write(t, s, "b", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.Close())
	journal := filepath.Join(s.dir, chunks.PacksFolder, pack.JournalName(1))
	flip(t, journal, 200) // the chunks of a
	lose := sync.OnceFunc(func() { spoil(t, s.dir, func([]byte) int { return 200 }) })
	h := &atMessage{text: "a journal is damaged"}
	h.fn.Store(&lose)
	o := s.o
	o.Logger = slog.New(h)
	res, err := Repair(t.Context(), s.dir, o)
	must(t, err)
	aside, err := filepath.Glob(journal + ".set-aside-*")
	if err != nil || len(aside) != 1 {
		t.Errorf("the damaged journal is gone: %+v, %v", res, err)
	}
}
