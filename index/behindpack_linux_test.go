package index

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// What is allocated behind the end of a pack, as by a process that was killed on a full disk, gc gives back.
func TestGCOfRoomBehindAPack(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(1, 4<<20)}
	write(t, s, "stays", files)
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", map[string][]byte{"f": memory(2, 1<<20)})
	path := filepath.Join(s.dir, chunks.PacksFolder, pack.Name(1))
	s = reopen(t, s)
	before := onDisk(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	size, err := f.Seek(0, 2)
	must(t, err)
	const room = 2 << 20
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, size, room))
	if onDisk(t, path) < before+room {
		t.Fatalf("%d bytes are allocated, %d before", onDisk(t, path), before)
	}
	for _, dry := range []bool{true, false} {
		res, err := s.GC(t.Context(), GCOptions{DryRun: dry})
		must(t, err)
		if res.Reclaimable <= room-64<<10 || res.Reclaimable > room {
			t.Errorf("dry %v: %d bytes could be given back, want about %d", dry, res.Reclaimable, room)
		}
	}
	if onDisk(t, path) != before {
		t.Errorf("%d bytes are allocated after gc, want %d", onDisk(t, path), before)
	}
	mustHold(t, s, "stays", files)
}
