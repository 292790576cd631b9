package index

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestShrinkOnFullDisk: a full disk refuses a tag; there is room again, another pack is begun; gc finds the disk full
// when it writes the first journal anew. Nothing is damaged.
func TestShrinkOnFullDisk(t *testing.T) {
	var full atomic.Pointer[string] // files that find no room
	o := testOptions(t)
	o.Tuning.ShrinkJournal = 1 << 10
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if suffix := full.Load(); suffix != nil && c.Op == storage.OpWrite && strings.HasSuffix(c.Name, *suffix) {
			return storage.Fault{Kind: storage.Short, Err: unix.ENOSPC, Seed: 3}
		}
		return storage.Fault{}
	}}
	s := newTestStore(t, o)
	files := map[string][]byte{"f": memory(1, 1<<20)}
	write(t, s, "kept", files)
	for i := range 40 {
		if err := s.Tag(t.Context(), "kept", []string{fmt.Sprint("tag-", i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	journal, fresh := ".journal", ".journal.new"
	full.Store(&journal)
	if err := s.Tag(t.Context(), "kept", []string{"refused"}, nil); err == nil {
		t.Fatal("no error on a full disk")
	}
	full.Store(nil)
	if err := s.chunks.Packs.Roll(); err != nil { // the pack is full: the next dump begins another
		t.Fatal(err)
	}
	write(t, s, "next", map[string][]byte{"f": memory(2, 1<<20)})
	full.Store(&fresh)
	_, err := s.GC(t.Context(), upkeep.GCOptions{})
	t.Logf("gc on a full disk: %v", err)
	full.Store(nil)
	mustHold(t, s, "kept", files)
	res, err := s.Verify(t.Context(), upkeep.VerifyOptions{Subset: 1})
	if err != nil || len(res.Problems)+len(res.SetAside) > 0 {
		t.Errorf("verify: %+v, %v", res, err)
	}
}
