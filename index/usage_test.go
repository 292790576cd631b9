package index

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestUsageIsThatOfItsParts: what usage counts side by side is what a list and a dry collection say one after the
// other.
func TestUsageIsThatOfItsParts(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	common := memory(1, 2<<20)
	for i := range 6 {
		write(t, s, fmt.Sprintf("c%d", i), map[string][]byte{
			"pages-1.img": append(memory(uint64(10+i/2), 1<<20), common...),
			"pages-2.img": memory(uint64(20+i), 1<<20),
		})
	}
	if err := s.Remove(t.Context(), []string{"c1", "c4", "c5"}); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dry, err := s.GC(t.Context(), upkeep.GCOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if dry.Reclaimable == 0 {
		t.Fatal("nothing could be given back")
	}
	for range 5 {
		u, err := s.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u.Reclaimable != dry.Reclaimable {
			t.Errorf("%d bytes could be given back, a dry collection says %d", u.Reclaimable, dry.Reclaimable)
		}
		if !reflect.DeepEqual(u.Checkpoints, list) {
			t.Errorf("checkpoints:\n%+v\na list has\n%+v", u.Checkpoints, list)
		}
		var held, stored int64
		for _, h := range u.Held {
			held += h.Sum()
		}
		for _, c := range u.Checkpoints {
			stored = max(stored, c.Stored)
		}
		if held != u.Stored || u.Stored < stored {
			t.Errorf("%d bytes held of %d stored; one checkpoint has %d", held, u.Stored, stored)
		}
	}
}
