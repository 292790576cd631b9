package index

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestReadFailsOnce lets each call of an open, of verify and of gc fail in turn, in a store whose newest journal ends
// in half a frame. What could not be read once is not called damaged: with all calls passing again nothing is set
// aside, and verify finds nothing.
func TestReadFailsOnce(t *testing.T) {
	t.Parallel()
	s, files, journal := onePack(t)
	dir, o := s.dir, s.o
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
			left.Store(0)
			if err == nil {
				whole(t, s, k)
				err = s.Close()
			}
			if err != nil && !failed.Load() {
				t.Errorf("nothing failed: %v", err)
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

// onePack makes a store of one pack, whose journal it gives, with one checkpoint, a.
func onePack(t *testing.T) (s *Store, files map[string][]byte, journal string) {
	t.Helper()
	s = newTestStore(t, testOptions(t))
	files = map[string][]byte{"pages-1.img": memory(1, 600<<10), "inventory.img": []byte("a")}
	write(t, s, "a", files)
	packs, err := s.chunks.Packs.Packs()
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	return s, files, filepath.Join(s.dir, chunks.PacksFolder, pack.JournalName(packs[0]))
}

// failing is a storage of which the next calls of a kind on a file, by the end of its name, fail.
type failing struct {
	mu     sync.Mutex
	op     storage.Op
	suffix string
	err    error
	times  int
}

func (f *failing) next(times int, op storage.Op, suffix string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times, f.op, f.suffix, f.err = times, op, suffix, err
}

// left says how many of them have not come.
func (f *failing) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times
}

func (f *failing) rule(c storage.Call) storage.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.times == 0 || c.Op != f.op || !strings.HasSuffix(c.Name, f.suffix) {
		return storage.Fault{}
	}
	f.times--
	return storage.Fault{Kind: storage.Fail, Err: f.err}
}

// TestRepairBesideReadsThatFail lets a call fail while repair looks whether the chunks of a journal are there that was
// put aside, and of which no index tells. Nothing is lost: repair ends, or what could not be read stays listed.
func TestRepairBesideReadsThatFail(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]struct {
		op  storage.Op
		err error
		end bool // repair ends
	}{
		"the disk does not read": {storage.OpRead, unix.EIO, false},
		"no descriptors":         {storage.OpOpen, unix.EMFILE, true},
		"no memory":              {storage.OpRead, unix.ENOMEM, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, files, journal := onePack(t)
			dir, o := s.dir, s.o
			for _, err := range []error{s.Close(), os.Rename(journal, journal+".set-aside-1"),
				os.RemoveAll(filepath.Join(dir, chunks.IndexFolder))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			var f failing
			o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: f.rule}
			f.next(1, call.op, ".pack", call.err)
			_, err := Repair(t.Context(), dir, o)
			if call.end {
				if !errors.Is(err, call.err) {
					t.Fatalf("repair: %v", err)
				}
				_, err = Repair(t.Context(), dir, o)
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.left() > 0 {
				t.Fatal("nothing failed")
			}
			s = openTestStore(t, dir, o)
			s.Verify(t.Context(), upkeep.VerifyOptions{}) // forgets what is sound after all
			mustVerify(t, s, 0)
			mustHold(t, s, "a", files)
			if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
				t.Error(err)
			}
			mustHold(t, s, "a", files)
		})
	}
}

// TestJournalThatDoesNotOpen lets a journal not be opened for a while, for want of descriptors, when a draft is flushed
// and sealed. Nothing was written, and nothing is lost: the next try seals it.
func TestJournalThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	var f failing
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: f.rule}
	s := newTestStore(t, o)
	files := map[string][]byte{"pages-1.img": memory(1, 6<<20+100), "inventory.img": []byte("a")}
	d, err := s.Create(t.Context(), "a", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, files)
	for _, step := range []func() error{
		d.Flush, func() error { _, err := d.Seal(t.Context()); return err },
	} {
		f.next(2, storage.OpOpen, ".journal", unix.EMFILE)
		for f.left() > 0 {
			if err := step(); !errors.Is(err, unix.EMFILE) {
				t.Fatalf("want the error of the system, got %v", err)
			}
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	mustHold(t, s, "a", files)
	s = reopen(t, s)
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
}

// TestVerifyWithoutMemory: that is no damage, and verify says what it lacked.
func TestVerifyWithoutMemory(t *testing.T) {
	t.Parallel()
	s, files, _ := onePack(t)
	var f failing
	s.o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: f.rule}
	s = reopen(t, s)
	f.next(2, storage.OpRead, ".pack", unix.ENOMEM) // a run, and its first slot
	if v, err := s.Verify(t.Context(), upkeep.VerifyOptions{}); !errors.Is(err, unix.ENOMEM) || len(v.Problems) > 0 {
		t.Errorf("verify: %+v, %v", v.Problems, err)
	}
	mustVerify(t, s, 0)
	mustHold(t, s, "a", files)
}
