package index

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// A part of a manifest gets lost, or its checkpoint is removed, when the chunks of that have been uploaded: a bucket
// does not get a checkpoint that lacks a part.
func TestUploadOfWhatGetsLost(t *testing.T) {
	try := func(name string, want Class, lose func(t *testing.T, n *node, id string)) {
		t.Run(name, func(t *testing.T) {
			b := newShelf()
			n := newNode(t, b, "")
			n.fill(t, "web", 1, 1<<20)
			info, err := n.Info("web")
			must(t, err)
			all, looked := 0, 0
			u := n.Uploader(b.id)
			u.Looked = func(int64) { all++ }
			_, err = u.Upload(t.Context(), "web", b, nil)
			must(t, err)
			u.Looked = func(int64) {
				if looked++; looked == all {
					lose(t, n, info.ID)
				}
			}
			if res, err := u.Upload(t.Context(), "web", b, nil); ClassOf(err) != want {
				t.Errorf("uploaded: %v, %v", res != nil, err)
			}
		})
	}
	for _, prefix := range []string{manifest.TablePrefix, manifest.SegmentPrefix} {
		try(prefix, Corrupt, func(t *testing.T, n *node, id string) {
			var lost []record
			must(t, n.chunks.DB.MetaKeys("", func(key string) error {
				if strings.HasPrefix(key, prefix+id) {
					lost = append(lost, recordOf(t, n.Store, key))
				}
				return nil
			}))
			if len(lost) == 0 {
				t.Fatal("there are no such parts")
			}
			hide(t, n.Store, lost[len(lost)-1])
		})
	}
	try("removed", NotFound, func(t *testing.T, n *node, _ string) {
		must(t, n.Remove(t.Context(), []string{"web"}))
	})
}

// A chunk is moved, and its old place given back, between the look for it and its read: the upload finds it again.
func TestUploadBesideOptimizeAndGC(t *testing.T) {
	var armed atomic.Bool
	var s *Store
	var moved upkeep.OptimizeResult
	o := testOptions(t)
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpRead && strings.HasSuffix(c.Name, pack.Name(1)) && armed.CompareAndSwap(true, false) {
			var err error
			if moved, err = s.Optimize(t.Context(), upkeep.OptimizeOptions{}); err != nil {
				t.Error(err)
			}
			if err := s.chunks.Packs.Roll(); err != nil {
				t.Error(err)
			}
			if _, err := s.GC(t.Context(), GCOptions{}); err != nil {
				t.Error(err)
			}
		}
		return storage.Fault{}
	}}
	s = newTestStore(t, o)
	write(t, s, "a", map[string][]byte{"f": heap(1, 2<<20)})
	write(t, s, "beside", map[string][]byte{"f": noise(5, 1<<20)})
	must(t, s.chunks.Packs.Roll())
	b := newShelf()
	armed.Store(true)
	u := s.Uploader(b.id)
	if _, err := u.Upload(t.Context(), "a", b, nil); err != nil {
		t.Error(err)
	}
	if moved.Chunks == 0 {
		t.Error("nothing was moved: the test shows nothing")
	}
}
