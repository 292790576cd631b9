package index

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// A write that failed, as on a full disk, leaves a slot of which no journal tells, with slots of others behind it.
// After the process was killed gc gives it back, of the newest pack too.
func TestGCOfAGapInTheNewestPack(t *testing.T) {
	var failed atomic.Bool
	o := testOptions(t)
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpWrite && strings.HasSuffix(c.Name, ".pack") && c.Len > 64<<10 &&
			failed.CompareAndSwap(false, true) {
			return storage.Fault{Kind: storage.Late, Err: unix.ENOSPC}
		}
		return storage.Fault{}
	}}
	s := newTestStore(t, o)
	d, err := s.Create(t.Context(), "gone", drafts.CreateOptions{})
	must(t, err)
	f, err := d.Create("f", 0o644)
	must(t, err)
	_, err = f.WriteAt(memory(1, 4<<20), 0)
	if err == nil {
		_, err = d.Seal(t.Context())
	}
	if err == nil || !failed.Load() {
		t.Fatalf("no write has failed: %v", err)
	}
	must(t, d.Abort())
	files := map[string][]byte{"f": memory(2, 1<<20)}
	write(t, s, "stays", files)
	killed := filepath.Join(t.TempDir(), "store") // as it is when the process is killed now
	copyDir(t, s.dir, killed)
	s = openTestStore(t, killed, testOptions(t))
	_, err = s.GC(t.Context(), GCOptions{})
	must(t, err)
	use, err := s.Usage(t.Context())
	must(t, err)
	var occupied int64
	packs, err := filepath.Glob(filepath.Join(s.dir, chunks.PacksFolder, "*.pack"))
	must(t, err)
	for _, path := range packs {
		occupied += onDisk(t, path)
	}
	if occupied > use.Stored+int64(use.Packs)<<16 {
		t.Errorf("packs occupy %d bytes after gc, %d are stored", occupied, use.Stored)
	}
	mustHold(t, s, "stays", files)
}
