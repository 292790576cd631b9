package index

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/distant"
)

// newestDistant gives the record of the distant pack that was learned of last.
func newestDistant(t *testing.T, s *Store) record {
	t.Helper()
	var newest string
	must(t, s.chunks.DB.MetaKeys("distant/", func(key string) error {
		if distant.IsKey(key) && !strings.HasSuffix(key, "last") {
			newest = max(newest, key)
		}
		return nil
	}))
	return recordOf(t, s, newest)
}

// The index has lost what it knew of the distant pack that was learned of last: its number is not given to another one.
func TestNumberOfADistantPackIsGivenOnce(t *testing.T) {
	t.Run("pulled", func(t *testing.T) {
		b := newShelf()
		one, two := newNode(t, b, ""), newNode(t, b, "")
		fa, fb := map[string][]byte{"f": noise(1, 2<<20)}, map[string][]byte{"f": noise(2, 2<<20)}
		write(t, one.Store, "a", fa)
		write(t, one.Store, "b", fb)
		ra, rb := one.upload(t, b, "a"), one.upload(t, b, "b")
		_, err := two.Pull(t.Context(), "a", b.id, listed(ra.List))
		must(t, err)
		hide(t, two.Store, newestDistant(t, two.Store))
		must(t, two.Close())
		two.open(t, b)
		_, err = two.Pull(t.Context(), "b", b.id, listed(rb.List))
		must(t, err)
		must(t, two.Close())
		mustRepair(t, two.Store)
		two.open(t, b)
		for name, files := range map[string]map[string][]byte{"a": fa, "b": fb} {
			if err := two.holds(name, files); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("uploaded", func(t *testing.T) {
		b := newShelf()
		one, two := newNode(t, b, ""), newNode(t, b, "")
		fa := one.fill(t, "a", 1, 2<<20)
		one.upload(t, b, "a")
		hide(t, one.Store, newestDistant(t, one.Store))
		must(t, one.Close())
		one.open(t, b)
		one.fill(t, "c", 3, 4<<20)
		one.upload(t, b, "c")
		one.fill(t, "a2", 1, 2<<20)
		res := one.upload(t, b, "a2")
		_, err := two.Pull(t.Context(), "a2", b.id, listed(res.List))
		must(t, err)
		if err := two.holds("a2", fa); err != nil {
			t.Errorf("pulled elsewhere: %v", err)
		}
	})
}
