package remote_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// TestRemoveDamagedRoot follows what a verification advises of a root that is damaged: the checkpoint is removed, and
// pushed again. One that a later version wrote is not touched.
func TestRemoveDamagedRoot(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	files := map[string][]byte{"f": noise(1, 1<<20)}
	one.dump(t, "a", files)
	one.push(t, "a")
	whole := b.Content("roots/a")
	for _, damaged := range [][]byte{nil, whole[:len(whole)-1], []byte("junk")} {
		must(t, b.Apply(memory.Call{Op: "put", Key: "roots/a", Content: damaged}))
		must(t, one.remote.Stands(t.Context(), "a"))
		must(t, one.remote.Remove(t.Context(), "a"))
		if err := one.remote.Stands(t.Context(), "a"); index.ClassOf(err) != index.NotFound {
			t.Errorf("removed: %v", err)
		}
		one.collect(t)
		if p := one.push(t, "a"); p.Already || p.Bytes < 1<<20 {
			t.Errorf("pushed again: %+v", p)
		}
		v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
		if err != nil || len(v.Problems) > 0 || v.Checkpoints != 1 {
			t.Errorf("verify: %+v, %v", v, err)
		}
	}
	_, err := two.remote.Pull(t.Context(), two.Store, "a", "a")
	must(t, err)
	must(t, two.holds("a", files))

	later := []byte("gpucr-fs root 2\nsealed\n")
	must(t, b.Apply(memory.Call{Op: "put", Key: "roots/a", Content: later}))
	if err := one.remote.Remove(t.Context(), "a"); index.ClassOf(err) != index.Unsupported {
		t.Errorf("of a later version: %v", err)
	}
	if string(b.Content("roots/a")) != string(later) {
		t.Error("a root of a later version was changed")
	}
}

// TestDamagedHotRoot: what is damaged of a hot set, which is a copy, or of a run of repacking, stops no collection for
// good. What a later version wrote is not touched, and nor is a damaged checkpoint.
func TestDamagedHotRoot(t *testing.T) {
	var before func(memory.Call)
	b := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		if before != nil {
			before(c)
		}
		return false, nil
	}})
	one := newMachine(t, b)
	one.dump(t, "a", map[string][]byte{"f": noise(1, 1<<20)})
	one.push(t, "a")
	id := one.learn(t, "a", "old", noise(6, 1000))
	one.pushLearned(t, id)
	whole, later := b.Content("roots/~"+id), []byte("gpucr-fs root 2\nsealed\n")
	put := func(key string, content []byte) { must(t, b.Apply(memory.Call{Op: "put", Key: key, Content: content})) }
	put("roots/~"+id, whole[:len(whole)-1])
	put("roots/~!", []byte("junk")) // a key that is no name of ours
	put("roots/~0000000000000000", []byte("junk"))
	put("roots/~ffffffffffffffff", later)
	put("roots/damaged", []byte("junk"))
	must(t, one.remote.SweepLearned(t.Context()))
	_, unread, err := one.remote.ListWhole(t.Context())
	if told := strings.Join(unread, " "); err != nil || len(unread) != 3 || !strings.Contains(told, "roots/damaged") ||
		!strings.Contains(told, "roots/~ffff") {
		t.Errorf("still unread: %q, %v", unread, err)
	}
	b.Delete(t.Context(), "roots/~ffffffffffffffff", bucket.Cond{})
	b.Delete(t.Context(), "roots/~!", bucket.Cond{})
	must(t, one.remote.Remove(t.Context(), "damaged"))
	one.collect(t)
	done, err := one.remote.PushHot(t.Context(), one.Store, id, []byte("old"), func(int64) {})
	if err != nil || !done {
		t.Errorf("the hot set is pushed anew: %v, %v", done, err)
	}
	reads := 0
	whole = b.Content("roots/~" + id)
	put("roots/~"+id, whole[:len(whole)-1])
	before = func(c memory.Call) {
		if c.Op != "get" || c.Key != "roots/~"+id {
			return
		}
		if reads++; reads == 3 { // after the list, and the look for damaged ones
			put(c.Key, whole)
		}
	}
	must(t, one.remote.SweepLearned(t.Context()))
	if before = nil; !bytes.Equal(b.Content("roots/~"+id), whole) || reads < 3 {
		t.Errorf("a sound hot set is removed, which was damaged when it was read first (%d reads)", reads)
	}
	v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
	if err != nil || len(v.Problems) > 0 || v.Checkpoints != 1 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}
