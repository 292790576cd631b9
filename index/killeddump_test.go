package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// killed gives the store that is left when a dump that has begun a pack is killed in the middle of a commit. Nothing is
// damaged: half a frame is what a kill, or a full disk, leaves.
func killed(t *testing.T) string {
	s := newTestStore(t, testOptions(t))
	write(t, s, "kept", map[string][]byte{"f": memory(1, 1<<20)})
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	d, err := s.Create(t.Context(), "draft", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, map[string][]byte{"g": memory(2, 4<<20)})
	if err := s.chunks.Commit(nil); err != nil { // as after every CommitEvery bytes
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(to, os.DirFS(s.Dir())); err != nil {
		t.Fatal(err)
	}
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(to, chunks.PacksFolder, pack.JournalName(2)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("GPJF\x00\x01\x00\x00half a frame"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return to
}

// mustBeSound holds what is there, removes it, and collects.
func mustBeSound(t *testing.T, to string) {
	names, _ := filepath.Glob(filepath.Join(to, chunks.PacksFolder, "*set-aside*"))
	if len(names) > 0 {
		t.Errorf("put aside: %v", names)
	}
	after := openTestStore(t, to, testOptions(t))
	defer after.Close()
	mustHold(t, after, "kept", map[string][]byte{"f": memory(1, 1<<20)})
	if err := after.Remove(t.Context(), []string{"kept"}); err != nil {
		t.Fatal(err)
	}
	gc, err := after.GC(t.Context(), upkeep.GCOptions{})
	if err != nil || gc.Reclaimed == 0 {
		t.Errorf("gc gives nothing back: %+v, %v", gc, err)
	}
}

// TestRepairAfterAKilledDump: somebody repairs it.
func TestRepairAfterAKilledDump(t *testing.T) {
	to := killed(t)
	if _, err := Repair(t.Context(), to, testOptions(t)); err != nil {
		t.Fatal(err)
	}
	mustBeSound(t, to)
}

// TestRebuiltAfterAKilledDump: the disk was full for the index, too, so that whoever opens the store builds it anew.
func TestRebuiltAfterAKilledDump(t *testing.T) {
	to := killed(t)
	if err := os.Remove(filepath.Join(to, "index", "SOUND")); err != nil {
		t.Fatal(err)
	}
	s := openTestStore(t, to, testOptions(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mustBeSound(t, to)
}
