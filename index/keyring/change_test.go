package keyring

import (
	"slices"
	"testing"
)

func ringOf(ids ...string) *Ring {
	r := &Ring{Format: format}
	for _, id := range ids {
		r.Keys = append(r.Keys, Key{ID: id})
	}
	return r
}

// TestChange makes changes of one ring in another one, which others have changed.
func TestChange(t *testing.T) {
	for name, c := range map[string]struct{ before, after, other, want *Ring }{
		"added":          {ringOf("a"), ringOf("a", "b"), ringOf("a", "x"), ringOf("a", "x", "b")},
		"removed":        {ringOf("a", "b"), ringOf("a"), ringOf("b", "a", "x"), ringOf("a", "x")},
		"rotated":        {ringOf("a", "b"), ringOf("c"), ringOf("a", "x"), ringOf("c")},
		"made already":   {ringOf("a", "b"), ringOf("b", "c"), ringOf("x", "b", "c"), ringOf("x", "b", "c")},
		"rotated there":  {ringOf("a"), ringOf("c"), ringOf("c"), ringOf("c")},
		"nothing":        {ringOf("a"), ringOf("a"), ringOf("x"), ringOf("x")},
		"the last there": {ringOf("a", "b"), ringOf("b"), ringOf("a"), nil},
	} {
		r := c.other.Clone()
		changed, err := c.after.Since(c.before).In(r)
		ids := func(r *Ring) (ids []string) {
			for _, k := range r.Keys {
				ids = append(ids, k.ID)
			}
			return ids
		}
		if c.want == nil {
			if err == nil || !slices.Equal(ids(r), ids(c.other)) {
				t.Errorf("%s: %q, %v", name, ids(r), err)
			}
			continue
		}
		if err != nil || !slices.Equal(ids(r), ids(c.want)) || changed == slices.Equal(ids(r), ids(c.other)) {
			t.Errorf("%s: %q, %t, %v", name, ids(r), changed, err)
		}
	}
	full := &Ring{}
	for i := range maxKeys {
		full.Keys = append(full.Keys, Key{ID: string(rune('A' + i))})
	}
	if _, err := ringOf("a", "new").Since(ringOf("a")).In(full); err == nil || len(full.Keys) != maxKeys {
		t.Errorf("a full ring takes one more: %d keys, %v", len(full.Keys), err)
	}
}
