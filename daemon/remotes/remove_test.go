package remotes

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
)

// there is a checkpoint of a remote store; parent is the name and the id of another one, or "".
func there(name, id, parent string) remote.Entry {
	e := remote.Entry{Name: name, Meta: remote.Meta{ID: id}}
	e.Parent, e.ParentID, _ = strings.Cut(parent, " ")
	return e
}

// A checkpoint of the remote store goes after those that need it, and not without them.
func TestChildrenFirst(t *testing.T) {
	all := []remote.Entry{
		there("a", "1", ""), there("b", "2", "a 1"), there("c", "3", "b 2"), there("c2", "4", "b 2"),
		there("lone", "5", ""),
		there("other", "6", ""), there("lost", "7", "other 99"), // its parent's name is another one's by now
		there("new", "8", ""), there("old", "8", ""), there("kid", "9", "old 8"), // a renamed one, pushed twice
		there("moved", "10", ""), there("far", "11", "gone 10"), // found by no name, but nobody else has it
		there("blind", "12", "unread 13"), // the root of its parent cannot be read
	}
	for _, c := range []struct{ names, order, needed string }{
		{names: "lone", order: "lone"},
		{names: "c lone c", order: "c lone"},
		{names: "b", needed: "c"},
		{names: "b c", needed: "c2"},
		{names: "a", needed: "b"},
		{names: "lone a b", needed: "c"},
		{names: "a b c c2", order: "c c2 b a"},
		{names: "c2 b lone c a", order: "c2 c b lone a"},
		{names: "other", order: "other"},
		{names: "new", order: "new"},
		{names: "old", needed: "kid"},
		{names: "old kid new", order: "kid old new"},
		{names: "moved", needed: "far"},
		{names: "unread", needed: "blind"},
		{names: "unread blind", order: "blind unread"},
		{names: "none lone", order: "none lone"},
	} {
		order, err := childrenFirst(all, strings.Fields(c.names))
		if c.needed != "" {
			if index.ClassOf(err) != index.InUse || !strings.Contains(err.Error(), "checkpoint "+c.needed+" ") ||
				!strings.Contains(index.HintOf(err), c.needed) {
				t.Errorf("%s: %v, %v", c.names, order, err)
			}
			continue
		}
		if got := strings.Join(order, " "); err != nil || got != c.order {
			t.Errorf("%s: %q, want %q (%v)", c.names, got, c.order, err)
		}
	}
}
