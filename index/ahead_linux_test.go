package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
	"golang.org/x/sys/unix"
)

// TestRoomAheadOfAKilledWriter: a killed writer leaves the room that it took ahead, behind its pack. gc gives it back
// whether the pack is appended to again or not, and what is in use stays. On tmpfs nothing but the blocks of the file
// shows that room.
func TestRoomAheadOfAKilledWriter(t *testing.T) {
	const room = 8 << 20
	onTmpfs, err := os.MkdirTemp("/dev/shm", "room")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(onTmpfs) })
	for where, dir := range map[string]string{"disk": t.TempDir(), "tmpfs": onTmpfs} {
		t.Run(where, func(t *testing.T) {
			o := testOptions(t)
			to := filepath.Join(dir, "store")
			if err := Init(to, InitOptions{PackSize: 16 << 20}); err != nil {
				t.Fatal(err)
			}
			s := openTestStore(t, to, o)
			contents := map[string][]byte{"f": memory(1, 1<<20)}
			write(t, s, "first", contents)
			if err := s.chunks.Packs.Roll(); err != nil {
				t.Fatal(err)
			}
			write(t, s, "second", map[string][]byte{"f": memory(2, 1<<20)})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var sizes [3]int64
			for n := uint32(1); n <= 2; n++ {
				path := filepath.Join(to, chunks.PacksFolder, pack.Name(n))
				sizes[n] = onDisk(t, path)
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				st, err := f.Stat()
				if err == nil {
					err = unix.Fallocate(int(f.Fd()), 0, st.Size(), room)
				}
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
				if now := onDisk(t, path); now < sizes[n]+room {
					t.Fatalf("pack %d occupies %d bytes, then %d", n, sizes[n], now)
				}
			}
			s = openTestStore(t, to, o)
			defer s.Close()
			res, err := s.GC(t.Context(), upkeep.GCOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if hasExtentMaps(t, dir) && res.Reclaimed < room {
				t.Errorf("gc says that it gave back %d bytes", res.Reclaimed)
			}
			for n := uint32(1); n <= 2; n++ {
				now := onDisk(t, filepath.Join(to, chunks.PacksFolder, pack.Name(n)))
				if now > sizes[n]+64<<10 {
					t.Errorf("pack %d occupies %d bytes after gc, before the kill %d", n, now, sizes[n])
				}
			}
			mustHold(t, s, "first", contents)
			if res, err = s.GC(t.Context(), upkeep.GCOptions{DryRun: true}); err != nil || res.Reclaimable != 0 {
				t.Errorf("after gc %d bytes could be given back, %v", res.Reclaimable, err)
			}
		})
	}
}

// hasExtentMaps tells whether dir is on a file system that is known to tell what it has allocated.
func hasExtentMaps(t *testing.T, dir string) bool {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return true
	}
	return false
}

// onDisk gives the bytes that a file occupies.
func onDisk(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
