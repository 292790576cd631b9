package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// TestExchange gives a checkpoint another pack. A reader has its time, a later one is told to find it anew. The old
// pack is used for no new checkpoint, and goes.
func TestExchange(t *testing.T) {
	c, mem := newCatalog()
	old := dumped(t, c, "a", "some content")
	reader, err := c.Find(t.Context(), "a")
	ok(t, err)
	d := begun(t, c, Beside("0000000000000000"))
	moved := added(t, d, "some content")
	k, err := c.Find(t.Context(), "a")
	ok(t, err)
	every := func(Pack) bool { return true }
	ok(t, k.Exchange(t.Context(), every, []Pack{moved}, []byte("new")))
	fails(t, k.Exchange(t.Context(), every, []Pack{moved}, []byte("new")), ErrTaken)
	ok(t, d.Abort(t.Context()))
	ok(t, c.Retire(t.Context(), []Pack{old}))

	var now time.Duration
	g := c.Collector(Patience{Removed: 20, Now: func() time.Duration { return now }})
	collected(t, g, Report{})
	if got, err := text(t, reader, old); got != "some content" || err != nil {
		t.Errorf("a reader has its time: %q, %v", got, err)
	}
	other := begun(t, c, "b")
	if lost, err := other.Claim(t.Context(), []Pack{old, moved}); err != nil || !slices.Equal(lost, []Pack{old}) {
		t.Errorf("lost %v, %v", lost, err)
	}
	ok(t, other.Abort(t.Context()))
	now = 20
	collected(t, g, Report{Packs: 1, Bytes: old.Size})
	_, err = text(t, reader, old)
	fails(t, err, ErrMoved)
	k, err = c.Find(t.Context(), "a")
	ok(t, err)
	if got, err := text(t, k, moved); got != "some content" || err != nil || string(k.Meta) != "new" {
		t.Errorf("%q, %v, meta %q", got, err, k.Meta)
	}
	collected(t, g, Report{})
	if want := []string{"packs/" + moved.ID, "roots/a"}; !slices.Equal(mem.Keys(), want) {
		t.Errorf("left %v, want %v", mem.Keys(), want)
	}
}

// TestExchangeOfLostPacks: a pack with a tombstone, or a missing one, is not taken, and the root is as it was.
func TestExchangeOfLostPacks(t *testing.T) {
	c, mem := newCatalog()
	old := dumped(t, c, "a", "some content")
	d := begun(t, c, Beside("0000000000000000"))
	tombed := added(t, d, "some content")
	ok(t, mem.Apply(memory.Call{Op: "put", Key: tombKey(tombed.ID, one)}))
	for _, p := range []Pack{tombed, {d.Nonce() + "-9", 12}} {
		k, err := c.Find(t.Context(), "a")
		ok(t, err)
		fails(t, k.Exchange(t.Context(), func(Pack) bool { return true }, []Pack{p}, nil), ErrTaken)
		if k, err = c.Find(t.Context(), "a"); err != nil || !slices.Equal(k.Packs, []Pack{old}) {
			t.Errorf("the root lists %v, %v", k.Packs, err)
		}
	}
	// What an exchange that did not end has left goes with Trim.
	k, err := c.Find(t.Context(), "a")
	ok(t, err)
	left := k.Record
	left.Packs = []Pack{tombed, old}
	_, err = c.write(t.Context(), left, bucket.IfMatch(k.etag))
	ok(t, err)
	k, err = c.Find(t.Context(), "a")
	ok(t, err)
	ok(t, k.Trim(t.Context(), func(p Pack) bool { return p == old }))
	if k, err = c.Find(t.Context(), "a"); err != nil || !slices.Equal(k.Packs, []Pack{old}) {
		t.Errorf("trimmed, and the root lists %v, %v", k.Packs, err)
	}
	for _, key := range mem.Keys() {
		if strings.HasPrefix(key, removedDir) {
			t.Errorf("left %s", key)
		}
	}
}
