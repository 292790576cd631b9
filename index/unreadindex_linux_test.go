package index

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// spoil changes a byte in each table of the index of the store at dir, where at says in its content, and gives what
// undoes that. It fails where there is no such table.
func spoil(t *testing.T, dir string, at func(table []byte) int) (undo func()) {
	t.Helper()
	was := map[string][]byte{}
	tables, err := filepath.Glob(filepath.Join(dir, chunks.IndexFolder, "*.sst"))
	must(t, err)
	change := func(name string, b []byte, off int) {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt(b, int64(off))
		must(t, err)
	}
	places := map[string]int{}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		must(t, err)
		if off := at(b); off >= 0 {
			was[name], places[name] = b[off:off+1], off
			change(name, []byte{^b[off]}, off)
		}
	}
	if len(was) == 0 {
		t.Fatal("there is no such table")
	}
	return func() {
		for name, b := range was {
			if _, err := os.Stat(name); err == nil {
				change(name, b, places[name])
			}
		}
	}
}

// Part of the index is lost while the store is open: Badger says of its keys that they are not there. gc must not drop
// the journal that alone has them, the roots of a hundred checkpoints.
func TestGCWithLostRoots(t *testing.T) {
	const stay = 100
	for name, lose := range map[string]func(t *testing.T, s *Store) *Store{
		"a block cannot be read": func(t *testing.T, s *Store) *Store {
			spoil(t, s.dir, func(table []byte) int { return bytes.Index(table, []byte("stays-050")) })
			return s
		},
		"what leads to the blocks cannot be read": func(t *testing.T, s *Store) *Store {
			// A table ends in its index with its length, and the sum of that with its length.
			spoil(t, s.dir, func(table []byte) int {
				end := len(table) - 4
				end -= int(binary.BigEndian.Uint32(table[end:])) + 4
				return end - int(binary.BigEndian.Uint32(table[end:]))/2
			})
			return s
		},
		"Badger merged a table without what it could not read": func(t *testing.T, s *Store) *Store {
			b := s.chunks.DB.Batch()
			must(t, s.chunks.DB.MetaKeys(manifest.RootPrefix, func(key string) error {
				b.DeleteMeta(key)
				return nil
			}))
			must(t, b.Flush())
			return reopen(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "gone", map[string][]byte{"f": memory(1, 8<<20)})
			for i := range stay {
				write(t, s, fmt.Sprintf("stays-%03d", i), map[string][]byte{"f": []byte("small")})
			}
			must(t, s.chunks.Packs.Roll())
			write(t, s, "newer", map[string][]byte{"f": memory(2, 8<<20)})
			must(t, s.Remove(t.Context(), []string{"gone"}))
			s = lose(t, reopen(t, s))
			_, err := s.GC(t.Context(), GCOptions{})
			if ClassOf(err) != Corrupt || fault.HintOf(err) == "" {
				t.Errorf("gc over an index that has lost something: %v", err)
			}
			must(t, s.Close())
			_, err = Repair(t.Context(), s.dir, s.o)
			must(t, err)
			s = openTestStore(t, s.dir, s.o)
			if all, err := s.Names(t.Context()); err != nil || len(all) != stay+1 {
				t.Errorf("%d checkpoints of %d are left, %v", len(all), stay+1, err)
			}
		})
	}
}

// The same with the places of chunks, of which the bucket is known to have had copies: gc must not take these for the
// only ones. Once a disk gives other bytes, once it refuses to read, which comes as a SIGBUS, while gc runs.
func TestGCWithUnreadablePlaces(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("refused=%v", refused), func(t *testing.T) {
			b := newShelf()
			n := newNode(t, b, "")
			files := n.fill(t, "a", 1, 60<<20)
			n.upload(t, b, "a")
			must(t, n.chunks.Packs.Roll())
			n.fill(t, "b", 2, 1<<20)
			must(t, n.Close())
			n.open(t, b)
			b.packs = map[object.Name][]byte{} // removed in the bucket
			undo := func() {}
			n.upkeep.Hooks.Begun = func() {
				undo = spoil(t, n.dir, func([]byte) int { return 200 })
				if refused {
					sigbus(t)
				}
			}
			if _, err := n.GC(t.Context(), GCOptions{}); err == nil {
				t.Error("gc said nothing of an index that cannot be read")
			}
			_ = n.Close()
			undo() // the disk reads again
			n.open(t, b)
			if err := n.holds("a", files); err != nil {
				t.Error("the checkpoint is lost:", err)
			}
		})
	}
}

var sink byte

// sigbus reads from a mapping what its file has not, as of a page that the disk refuses to read.
func sigbus(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(8192))
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(m)
	must(t, f.Truncate(0))
	sink = m[4096]
}
