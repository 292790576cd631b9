package pack

import (
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
)

// TestPlacedSlotsAreNotListed before they are adopted; commits sync them all the same.
func TestPlacedSlotsAreNotListed(t *testing.T) {
	s := openSet(t, t.TempDir())
	content := pages(t, 3*chunk.PageSize)
	copy(content, "placed")
	id := chunk.Sum(content)
	loc, err := s.Place(id, content, len(content), chunk.Raw)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, nil, chunk.PageSize)
	listed := func() bool {
		t.Helper()
		found := false
		_, _, err := s.Read(loc.Pack, 0, func(r Record) error {
			found = found || r.Chunk != nil && *r.Chunk == Chunk{ID: id, Loc: loc}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if listed() {
		t.Error("the journal tells of a slot that nobody adopted")
	}
	buf := [][]byte{make([]byte, loc.Slot())}
	if err := s.ReadSlots([]Loc{loc}, buf, true)[0]; err != nil || !slices.Equal(buf[0], content) {
		t.Errorf("reading it back: %v", err)
	}
	s.Adopt([]Chunk{{ID: id, Loc: loc}})
	if !s.Unsettled(loc.Pack) {
		t.Error("an adopted slot does not wait for a commit")
	}
	if _, err := s.Commit(nil); err != nil || !listed() {
		t.Errorf("the journal does not tell of a slot that was adopted, %v", err)
	}
}
