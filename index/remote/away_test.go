package remote_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

func (m *machine) collect(t *testing.T) {
	t.Helper()
	g := m.remote.Collector(catalog.Patience{})
	for range 3 {
		_, err := g.Collect(t.Context())
		must(t, err)
	}
}

// TestOtherPackServes has two machines push the same content, neither knows of the other. A third has pulled both.
// When one of them is removed the other one still stands in the bucket, and must be readable.
func TestOtherPackServes(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two, three := newMachine(t, b), newMachine(t, b), newMachine(t, b)
	files := map[string][]byte{"pages-1.img": noise(1, 3<<20)}
	one.dump(t, "a", files)
	two.dump(t, "b", files)
	for _, m := range []struct {
		m *machine
		n string
	}{{one, "a"}, {two, "b"}} {
		_, err := m.m.remote.Push(t.Context(), m.m.Store, m.n)
		must(t, err)
		_, err = three.remote.Pull(t.Context(), three.Store, m.n, m.n)
		must(t, err)
	}
	must(t, one.remote.Remove(t.Context(), "b"))
	one.collect(t)
	four := newMachine(t, b)
	_, err := four.remote.Pull(t.Context(), four.Store, "a", "a")
	must(t, err)
	must(t, four.holds("a", files)) // it stands
	if err := three.holds("a", files); err != nil {
		t.Errorf("a stands in the bucket, and cannot be read where b was pulled, too: %v", err)
	}
}

// TestGoneAndCached removes a checkpoint from the bucket that a node has read whole: it can be read there, also after a
// push has found its packs gone.
func TestGoneAndCached(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	two := newMachine(t, b)
	files := map[string][]byte{"pages-1.img": noise(1, 3<<20)}
	one.dump(t, "a", files)
	_, err := one.remote.Push(t.Context(), one.Store, "a")
	must(t, err)
	_, err = two.remote.Pull(t.Context(), two.Store, "a", "a")
	must(t, err)
	must(t, two.holds("a", files))
	must(t, one.remote.Remove(t.Context(), "a"))
	one.collect(t)
	two.reopen(t)
	must(t, two.holds("a", files)) // from the node's cache
	_, err = two.remote.Push(t.Context(), two.Store, "a")
	must(t, err)
	two.reopen(t)
	if err := two.holds("a", files); err != nil {
		t.Errorf("a could be read before sync, and now: %v (class %v)", err, index.ClassOf(err))
	}
}

// TestTombstonesLeft leaves tombstones over packs that are in use, as a collector that crashes does: they are not used
// for another checkpoint, and can be read as before.
func TestTombstonesLeft(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	files := map[string][]byte{"pages-1.img": noise(1, 3<<20)}
	one.dump(t, "a", files)
	_, err := one.remote.Push(t.Context(), one.Store, "a")
	must(t, err)
	_, err = two.remote.Pull(t.Context(), two.Store, "a", "mine")
	must(t, err)
	for _, k := range b.Keys() {
		if p, ok := strings.CutPrefix(k, "packs/"); ok {
			tomb := "tombs/" + p + "." + strings.Repeat("ab", 16)
			_, err := b.Put(t.Context(), tomb, strings.NewReader(""), 0, bucket.IfAbsent)
			must(t, err)
		}
	}
	_, err = two.remote.Push(t.Context(), two.Store, "mine")
	must(t, err)
	if err := two.holds("mine", files); err != nil {
		t.Errorf("a stands in the bucket, and after sync mine cannot be read: %v", err)
	}
}

// TestOddRoots puts odd objects beside the roots: the others are listed.
func TestOddRoots(t *testing.T) {
	for _, key := range []string{"roots/junk", "roots/odd name", "roots/x/y", "roots/"} {
		b := memory.New(memory.Hooks{})
		one := newMachine(t, b)
		one.dump(t, "web", map[string][]byte{"a": noise(1, 5000)})
		_, err := one.remote.Push(t.Context(), one.Store, "web")
		must(t, err)
		_, err = b.Put(t.Context(), key, strings.NewReader("junk"), 4, bucket.Cond{})
		must(t, err)
		if l, err := one.remote.List(t.Context()); err != nil || len(l) != 1 {
			t.Errorf("%q: ls: %v, %v", key, l, err)
		}
	}
}

// TestRootsThatLie has roots whose parents or labels would draw lines of their own, and one with packs of impossible
// lengths: they are left out.
func TestRootsThatLie(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	one.dump(t, "web", map[string][]byte{"a": noise(1, 5000)})
	_, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	forged := []string{`{"parent": "a\nb"}`, `{"labels": {"host": "x\ny"}}`, `{"labels": {"A B": "x"}}`, `not JSON`}
	for i, meta := range forged {
		d, err := catalog.New(b, hasty.Catalog).Begin(t.Context(), fmt.Sprintf("forged-%d", i))
		must(t, err)
		must(t, d.Seal(t.Context(), nil, []byte(meta)))
	}
	if l, err := one.remote.List(t.Context()); err != nil || len(l) != 1 {
		t.Errorf("ls: %v, %v", l, err)
	}
}
