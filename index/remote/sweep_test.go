package remote_test

import (
	"bytes"
	"testing"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// A root that a later version of the program wrote, and this one does not understand, is no checkpoint that was
// removed: what was learned of it stays.
func TestSweepBesideALaterVersion(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	one.dump(t, "a", map[string][]byte{"f": noise(1, 1<<20)})
	_, err := one.remote.Push(t.Context(), one.Store, "a")
	must(t, err)
	i, err := one.Info("a")
	must(t, err)
	must(t, one.remote.PutProfile(t.Context(), i.ID, []byte("learned")))
	text := []byte("gpucr-fs root 2\nsealed\n")
	_, err = b.Put(t.Context(), "roots/a", bytes.NewReader(text), int64(len(text)), bucket.Cond{})
	must(t, err)
	if list, whole, err := one.remote.ListWhole(t.Context()); err != nil || len(list) > 0 || whole {
		t.Errorf("%d checkpoints, whole %v, %v", len(list), whole, err)
	}
	must(t, one.remote.SweepLearned(t.Context()))
	if _, err := b.Stat(t.Context(), "profiles/"+i.ID); err != nil {
		t.Error("the profile is gone:", err)
	}
}
