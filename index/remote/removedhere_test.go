package remote_test

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// TestRemovedHereWhileItIsPushed: a checkpoint is removed while one of its packs, or its list, is on its way. It is not
// sealed in the bucket, where others would have to remove it anew, and its name is free.
func TestRemovedHereWhileItIsPushed(t *testing.T) {
	for at := range 2 {
		var before meddling
		b := memory.New(memory.Hooks{Before: before.call})
		one := newMachine(t, b)
		one.dump(t, "a", map[string][]byte{"pages-1.img": noise(1, 50_000)})
		puts := 0
		before.set(func(c memory.Call) error {
			if c.Op != "put" || !strings.HasPrefix(c.Key, "packs/") {
				return nil
			}
			if puts++; puts == at+1 {
				must(t, one.Remove(t.Context(), []string{"a"}))
			}
			return nil
		})
		_, err := one.remote.Push(t.Context(), one.Store, "a")
		before.set(nil)
		if puts != 2 || index.ClassOf(err) != index.NotFound || !strings.Contains(err.Error(), "removed here") {
			t.Errorf("pushed: %v; %d packs", err, puts)
		}
		if list, err := one.remote.List(t.Context()); err != nil || len(list) > 0 {
			t.Errorf("there stand %+v, %v", list, err)
		}
		one.dump(t, "a", map[string][]byte{"pages-1.img": noise(2, 5000)})
		if p := one.push(t, "a"); p.Already || p.Packs == 0 {
			t.Errorf("pushed %+v under a name that is free", p)
		}
	}
}
