package index

import (
	"bytes"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// The index shows a part of a manifest as the draft had it before that was overwritten: it is neither sealed nor read.
func TestAnOlderPartOfAManifestIsNotRead(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, f := draftFile(t, s, "a", "pages-1.img")
	page := bytes.Repeat([]byte{1}, chunk.PageSize)
	var cuts []int64
	for i := range int64(manifest.MaxChunks) {
		cuts = append(cuts, (i+1)*chunk.PageSize)
	}
	f.CutAt(cuts)
	want := bytes.Repeat(page, manifest.MaxChunks+1)
	put := func(p []byte, off int) {
		t.Helper()
		_, err := f.WriteAt(p, int64(off))
		must(t, err)
		copy(want[off:], p)
	}
	put(want, 0)
	segment := func() (r record) {
		t.Helper()
		must(t, s.chunks.DB.MetaKeys(manifest.SegmentPrefix, func(key string) error {
			r = recordOf(t, s, key)
			return nil
		}))
		if r.key == "" {
			t.Fatal("no part of the manifest is in the index")
		}
		return r
	}
	older := segment()
	put(bytes.Repeat([]byte{2}, chunk.PageSize), chunk.PageSize)
	must(t, f.CloseEdited(0))
	newer := segment()
	if bytes.Equal(older.payload, newer.payload) {
		t.Fatal("it was not written again")
	}

	show(t, s, older)
	if _, err := d.Seal(t.Context()); ClassOf(err) != Corrupt {
		t.Errorf("sealed with an older part: %v", err)
	}
	show(t, s, newer)
	must(t, f.Close())
	_, err := d.Seal(t.Context())
	must(t, err)
	mustHold(t, s, "a", map[string][]byte{"pages-1.img": want})

	show(t, s, older)
	s = reopen(t, s)
	if got, err := read(s, "a", "pages-1.img"); ClassOf(err) != Corrupt {
		t.Errorf("an older part is read: %d bytes, as written: %v, %v", len(got), bytes.Equal(got, want), err)
	}
	s = repaired(t, s)
	mustHold(t, s, "a", map[string][]byte{"pages-1.img": want})
}
