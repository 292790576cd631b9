package index

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// atByte calls do once, before it gives the byte with this number.
type atByte struct {
	r   io.Reader
	n   int
	do  func()
	pos int
}

func (r *atByte) Read(p []byte) (int, error) {
	if r.pos == r.n && r.do != nil {
		r.do()
		r.do = nil
	}
	if r.pos < r.n {
		p = p[:min(len(p), r.n-r.pos)]
	}
	n, err := r.r.Read(p)
	r.pos += n
	return n, err
}

// A checkpoint is pulled while gc runs, or gc runs while one is pulled. Its content lies in the store, too, and nothing
// else uses that any more; and nobody says that the bucket needs its packs.
func TestPullBesideGC(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	files := one.fill(t, "web", 1, 3<<20)
	res := one.upload(t, b, "web")
	none := GCOptions{Stands: func(object.Name) bool { return false }}
	try := func(name string, beside func(t *testing.T, n *node, gc, pull func())) {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, b, "")
			n.fill(t, "same", 1, 3<<20)
			must(t, n.Remove(t.Context(), []string{"same"}))
			must(t, n.chunks.Packs.Roll())
			n.fill(t, "other", 2, 1<<20)
			beside(t, n, func() {
				_, err := n.GC(t.Context(), none)
				must(t, err)
			}, func() {
				_, err := n.Pull(t.Context(), "pulled", b.id, listed(res.List))
				must(t, err)
			})
			must(t, n.holds("pulled", files))
			_, err := n.GC(t.Context(), none)
			must(t, err)
			must(t, n.Close())
			mustRepair(t, &Store{dir: n.dir, o: Options{FreeFloor: 1}})
			n.open(t, b)
			must(t, n.holds("pulled", files))
		})
	}
	for _, part := range []int{1, 2, 3, 4} {
		try(fmt.Sprintf("gc at %d quarters of the list", part), func(t *testing.T, n *node, gc, _ func()) {
			list := &atByte{r: bytes.NewReader(res.List), n: len(res.List) * part / 4, do: gc}
			_, err := n.Pull(t.Context(), "pulled", b.id, object.Source{Reader: list})
			must(t, err)
			if list.do != nil {
				t.Error("gc did not run")
			}
		})
	}
	try("pull before gc looks", func(_ *testing.T, n *node, gc, pull func()) {
		n.upkeep.Hooks.Begun = pull
		gc()
		n.upkeep.Hooks.Begun = nil
	})
	try("pull when gc has looked", func(_ *testing.T, n *node, gc, pull func()) {
		n.upkeep.Hooks.Found = pull
		gc()
		n.upkeep.Hooks.Found = nil
	})
}

// A pull that was killed has left checkpoints incomplete. They are pulled again while gc removes what is left: that
// must not take the records of the new pull.
func TestPullWhileAnEarlierOneIsRemoved(t *testing.T) {
	b := newShelf()
	one, two := newNode(t, b, ""), newNode(t, b, "")
	files, lists := map[string]map[string][]byte{}, map[string][]byte{}
	for i, name := range []string{"a", "b"} {
		files[name] = one.fill(t, name, uint64(i), 1<<20)
		lists[name] = one.upload(t, b, name).List
		info, err := one.Info(name)
		must(t, err)
		_, pb := one.roots.ByID(info.ID)
		pb = proto.CloneOf(pb)
		pb.Sealed = false
		payload, err := manifest.EncodeCheckpoint(pb)
		must(t, err)
		must(t, two.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(info.ID), Payload: payload}}))
	}
	must(t, two.Close())
	two.open(t, b)
	other := map[string]string{"a": "b", "b": "a"}
	tried := ""
	cancel := two.Subscribe(func(name string) {
		if tried == "" {
			tried = other[name]
			// It may be refused.
			_, _ = two.Pull(t.Context(), tried, b.id, listed(lists[tried]))
		}
	})
	_, err := two.GC(t.Context(), GCOptions{})
	must(t, err)
	cancel()
	if _, err := two.Info(tried); ClassOf(err) == NotFound {
		_, err := two.Pull(t.Context(), tried, b.id, listed(lists[tried]))
		must(t, err)
	}
	must(t, two.Close())
	two.open(t, b)
	must(t, two.holds(tried, files[tried]))
}
