package remote_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// dumpOn dumps a checkpoint that is built on another one.
func (m *machine) dumpOn(t *testing.T, parent, name string, content []byte) {
	t.Helper()
	d, err := m.Create(t.Context(), name, index.CreateOptions{})
	must(t, err)
	must(t, d.SetParent(parent))
	f, err := d.Create("pages-1.img", 0o644)
	must(t, err)
	_, err = f.WriteAt(content, 0)
	must(t, err)
	must(t, f.Close())
	_, err = d.Seal(t.Context())
	must(t, err)
}

// lacksParent says whether a verification tells that the checkpoint "second" has lost its parent "first", and no more.
func (m *machine) lacksParent(t *testing.T, names ...string) bool {
	t.Helper()
	v, err := m.remote.Verify(t.Context(), remote.VerifyOptions{Names: names, Holds: m.Holds})
	must(t, err)
	if len(v.Problems) == 0 {
		return false
	}
	p := v.Problems[0]
	if len(v.Problems) > 1 || p.Checkpoint != "second" || !strings.Contains(p.Text, "parent first") {
		t.Errorf("it tells %+v", v.Problems)
	}
	return true
}

// TestVerifyParents: a checkpoint whose parent is gone, or has given its name to another one, is not sound.
func TestVerifyParents(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	one.dump(t, "first", map[string][]byte{"pages-1.img": noise(1, 5000)})
	one.dumpOn(t, "first", "second", noise(2, 5000))
	one.push(t, "second")
	if one.lacksParent(t) || one.lacksParent(t, "second") {
		t.Error("sound, and the parent is missing")
	}
	must(t, two.remote.Remove(t.Context(), "first"))
	if !one.lacksParent(t) || !one.lacksParent(t, "second") {
		t.Error("the parent was removed, and it is sound")
	}
	two.dump(t, "first", map[string][]byte{"pages-1.img": noise(3, 5000)})
	two.push(t, "first")
	if !one.lacksParent(t) || one.lacksParent(t, "first") {
		t.Error("another one has the name of the parent, and it is sound")
	}
	must(t, two.remote.Remove(t.Context(), "first"))
	if p := one.push(t, "second"); !p.Already {
		t.Errorf("pushed %+v", p)
	}
	if one.lacksParent(t) {
		t.Error("the parent was pushed again, and is missing")
	}
}

// TestVerifyBesideRemoval: a checkpoint and then its parent are removed while the checkpoint is verified. That is no
// damage.
func TestVerifyBesideRemoval(t *testing.T) {
	var before meddling
	b := memory.New(memory.Hooks{Before: before.call})
	one := newMachine(t, b)
	one.dump(t, "first", map[string][]byte{"pages-1.img": noise(1, 5000)})
	one.dumpOn(t, "first", "second", noise(2, 5000))
	one.push(t, "second")
	var found atomic.Int32
	before.set(func(c memory.Call) error {
		switch {
		case c.Op == "get" && c.Key == "roots/second":
			found.Add(1)
		case c.Op == "get" && c.Key == "roots/first" && found.Load() == 2: // in the list, and to be verified
			before.set(nil)
			for _, name := range []string{"second", "first"} {
				must(t, one.remote.Remove(t.Context(), name))
			}
			found.Add(1)
		}
		return nil
	})
	if one.lacksParent(t) || found.Load() != 3 {
		t.Errorf("damage is told; the root was read %d times", found.Load())
	}
}

// TestParentRemovedMeanwhile: a parent is removed while its child is on its way, when nobody can see that it is needed.
// The push says so, and the next one brings the parent back.
func TestParentRemovedMeanwhile(t *testing.T) {
	var before meddling
	b := memory.New(memory.Hooks{Before: before.call})
	one, two := newMachine(t, b), newMachine(t, b)
	one.dump(t, "first", map[string][]byte{"pages-1.img": noise(1, 5000)})
	one.dumpOn(t, "first", "second", noise(2, 5000))
	before.set(func(c memory.Call) error {
		if c.Op == "put" && strings.HasPrefix(c.Key, "packs/") && b.Content("roots/second") != nil {
			before.set(nil)
			must(t, two.remote.Remove(t.Context(), "first"))
		}
		return nil
	})
	_, err := one.remote.Push(t.Context(), one.Store, "second")
	if index.ClassOf(err) != index.InUse || !strings.Contains(err.Error(), "parent first") ||
		!strings.Contains(index.HintOf(err), "sync it again") {
		t.Errorf("pushed: %v (%s)", err, index.HintOf(err))
	}
	if !one.lacksParent(t) {
		t.Error("the parent was removed, and it is sound")
	}
	one.push(t, "second")
	if one.lacksParent(t) {
		t.Error("pushed again, and the parent is missing")
	}
	_, err = two.remote.Pull(t.Context(), two.Store, "second", "second")
	must(t, err)
	must(t, two.holds("second", map[string][]byte{"pages-1.img": noise(2, 5000)}))
}

// TestPullBesideAnotherParent: another checkpoint has the name of the parent by now. A checkpoint is not pulled with
// that in its place.
func TestPullBesideAnotherParent(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two, three := newMachine(t, b), newMachine(t, b), newMachine(t, b)
	one.dump(t, "first", map[string][]byte{"pages-1.img": noise(1, 5000)})
	one.dumpOn(t, "first", "second", noise(2, 5000))
	one.push(t, "second")
	must(t, two.remote.Remove(t.Context(), "first"))
	two.dump(t, "first", map[string][]byte{"pages-1.img": noise(3, 5000)})
	two.push(t, "first")
	_, err := three.remote.Pull(t.Context(), three.Store, "second", "second")
	if index.ClassOf(err) != index.InUse || !strings.Contains(err.Error(), "parent first") {
		t.Errorf("pulled with another parent: %v", err)
	}
	if list, err := three.Names(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("pulled %+v, %v", list, err)
	}
}
