package remote_test

import (
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
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
