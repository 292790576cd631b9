package index

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// The index has lost a part of a manifest, and with it how far up chunks have been moved: gc must not take the packs
// that they were moved to for younger than all that the checkpoint needs.
func TestGCWithoutTheLastMove(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": heap(1, 1<<20)}
	write(t, s, "a", files)
	write(t, s, "beside", map[string][]byte{"f": memory(3, 1<<20)}) // its pack stays
	must(t, s.chunks.Packs.Roll())
	mustOptimize(t, s, upkeep.OptimizeOptions{})
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", map[string][]byte{"f": memory(2, 1<<20)})
	res, err := s.GC(t.Context(), GCOptions{}) // the older places are given back
	must(t, err)
	if res.DeadChunks == 0 || res.PacksGone > 0 {
		t.Fatalf("%+v: the test shows nothing", res)
	}
	var lost []record
	a, err := s.Info("a")
	must(t, err)
	must(t, s.chunks.DB.MetaKeys("", func(key string) error {
		if key == chunks.MovedKey || strings.HasPrefix(key, manifest.SegmentPrefix+a.ID) {
			lost = append(lost, recordOf(t, s, key))
		}
		return nil
	}))
	if len(lost) != 2 {
		t.Fatalf("%d records: the test shows nothing", len(lost))
	}
	hide(t, s, lost...)
	s = reopen(t, s)
	mustRefuse(t, s)
	s = repaired(t, s)
	mustHold(t, s, "a", files)
}
