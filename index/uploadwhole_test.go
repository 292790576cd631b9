package index

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/manifest"
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
