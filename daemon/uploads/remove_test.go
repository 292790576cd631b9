package uploads

import (
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

// TestRemoveAllOrNothing: of several checkpoints none is removed from the bucket unless all of them are there.
func TestRemoveAllOrNothing(t *testing.T) {
	_, address := newBucket(t)
	one := newNode(t, address)
	one.dump("a", "some text")
	one.dump("b", "other text")
	one.settle()
	removed, err := one.remote.Remove(t.Context(), []string{"a", "nosuch", "b"})
	if len(removed) > 0 || index.ClassOf(err) != index.NotFound {
		t.Errorf("removed %v, %v", removed, err)
	}
	r, err := one.remote.Store(t.Context())
	must(t, err)
	if list, err := r.List(t.Context()); err != nil || len(list) != 2 || one.place("a") != Durable {
		t.Errorf("the list is %v, %v; a is %s", list, err, one.place("a"))
	}
	removed, err = one.remote.Remove(t.Context(), []string{"a", "b", "a"})
	if err != nil || !slices.Equal(removed, []string{"a", "b"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the list is %v, %v", list, err)
	}
	if lacking, err := one.up.Lacking(t.Context()); err != nil || len(lacking) != 2 {
		t.Errorf("the bucket lacks %v, %v", lacking, err)
	}
}
