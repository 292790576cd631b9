package remote_test

import (
	"bytes"
	"strings"
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
	list, unread, err := one.remote.ListWhole(t.Context())
	if err != nil || len(list) > 0 || len(unread) != 1 || !strings.Contains(unread[0], "roots/a") {
		t.Errorf("%d checkpoints, unread %q, %v", len(list), unread, err)
	}
	must(t, one.remote.SweepLearned(t.Context()))
	if _, err := b.Stat(t.Context(), "profiles/"+i.ID); err != nil {
		t.Error("the profile is gone:", err)
	}
}
