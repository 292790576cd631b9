package index

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestReadFailsOnce lets each call of an open, of verify and of gc fail in turn, in a store whose newest journal ends
// in half a frame. What could not be read once is not called damaged: with all calls passing again nothing is set
// aside, and verify finds nothing.
func TestReadFailsOnce(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 200<<10), "inventory.img": []byte("a")}
	write(t, s, "a", files)
	packs, err := s.chunks.Packs.Packs()
	if err != nil {
		t.Fatal(err)
	}
	dir, o := s.dir, s.o
	journal := filepath.Join(dir, chunks.PacksFolder, pack.JournalName(packs[len(packs)-1]))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, journal, []byte("GPJF\x00\x01\x00\x00abcdefg"))

	var left atomic.Int64 // calls until one fails
	var failed atomic.Bool
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if left.Add(-1) != 0 {
			return storage.Fault{}
		}
		failed.Store(true)
		return storage.Fault{Kind: storage.Fail}
	}}
	whole := func(t *testing.T, s *Store, k int64) {
		t.Helper()
		mustVerify(t, s, 0)
		if list, err := s.chunks.Aside.All(); err != nil || len(list) > 0 {
			t.Errorf("call %d failed once, set aside: %+v, %v", k, list, err)
		}
		mustHold(t, s, "a", files)
	}
	// each lets one call after another fail in do.
	each := func(t *testing.T, do func(k int64)) {
		k := int64(0)
		for failed.Store(true); failed.Load() && !t.Failed(); {
			k++
			failed.Store(false)
			left.Store(k)
			do(k)
			left.Store(0)
		}
		if k < 10 {
			t.Errorf("%d calls only", k)
		}
		t.Logf("%d calls", k-1)
	}
	t.Run("open", func(t *testing.T) {
		each(t, func(k int64) {
			s, err := Open(t.Context(), dir, o)
			if left.Store(0); err == nil {
				whole(t, s, k)
				err = s.Close()
			} else if !failed.Load() {
				t.Errorf("nothing failed: %v", err)
			}
			if err != nil && !failed.Load() {
				t.Error(err)
			}
		})
	})
	s = openTestStore(t, dir, o)
	t.Run("verify", func(t *testing.T) {
		each(t, func(k int64) {
			s.Verify(t.Context(), upkeep.VerifyOptions{})
			left.Store(0)
			whole(t, s, k)
		})
	})
	t.Run("gc", func(t *testing.T) {
		each(t, func(k int64) {
			s.GC(t.Context(), upkeep.GCOptions{})
			left.Store(0)
			whole(t, s, k)
		})
	})
}
