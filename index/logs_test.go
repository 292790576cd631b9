package index

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestValuesLostWithTheirLog: after a power cut the index may have what was written to the log of its memory and not the
// values that this refers to, which are in a log of their own: the kernel writes both back when it likes. What was sealed
// is there all the same.
func TestValuesLostWithTheirLog(t *testing.T) {
	o := testOptions(t)
	type cut struct {
		dir    string
		sealed int // checkpoints that somebody was told of
	}
	var (
		s      *Store
		cuts   []cut
		sealed int
		synced string // a folder with the logs of values as of the last sync
	)
	values := func(dir string) (names []string) {
		names, err := filepath.Glob(filepath.Join(dir, "*.vlog"))
		if err != nil {
			t.Error(err)
		}
		return names
	}
	o.Tuning.IndexSynced = func(dir string) {
		synced = t.TempDir()
		for _, name := range values(dir) {
			b, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(filepath.Join(synced, filepath.Base(name)), b, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	o.Tuning.IndexWrote = func(dir string) {
		if synced == "" {
			return
		}
		to := filepath.Join(t.TempDir(), "store")
		if err := os.CopyFS(to, os.DirFS(s.Dir())); err != nil {
			t.Error(err)
		}
		for _, name := range values(filepath.Join(to, "index")) {
			b, err := os.ReadFile(filepath.Join(synced, filepath.Base(name)))
			if err == nil {
				err = os.WriteFile(name, b, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
		cuts = append(cuts, cut{to, sealed})
	}
	s = newTestStore(t, o)
	files := func(i int) map[string][]byte {
		out := map[string][]byte{}
		for k := range 30 {
			out[fmt.Sprintf("a-file-with-a-name-of-some-length-%d.img", k)] = memory(uint64(i*100+k), 6000)
		}
		return out
	}
	for range 3 {
		write(t, s, fmt.Sprint("c", sealed), files(sealed))
		sealed++
	}
	if len(cuts) < 3 {
		t.Fatalf("%d moments between a write to the index and its sync", len(cuts))
	}
	for i, c := range cuts {
		after := openTestStore(t, c.dir, testOptions(t))
		list, err := after.Names(t.Context())
		if err != nil {
			t.Fatalf("power cut %d: %v", i, err)
		}
		sealed := 0
		for _, info := range list {
			if info.State == Sealed {
				sealed++
			}
		}
		if sealed < c.sealed {
			t.Errorf("power cut %d: %d of %d checkpoints are there", i, sealed, c.sealed)
		}
		for k := range sealed {
			mustHold(t, after, fmt.Sprint("c", k), files(k))
		}
		if err := after.Close(); err != nil {
			t.Error(err)
		}
	}
}

// atMessage calls fn at messages that begin so.
type atMessage struct {
	text string
	fn   atomic.Pointer[func()]
}

func (a *atMessage) Enabled(context.Context, slog.Level) bool { return true }
func (a *atMessage) Handle(_ context.Context, r slog.Record) error {
	if fn := a.fn.Load(); fn != nil && strings.HasPrefix(r.Message, a.text) {
		(*fn)()
	}
	return nil
}
func (a *atMessage) WithAttrs([]slog.Attr) slog.Handler { return a }
func (a *atMessage) WithGroup(string) slog.Handler      { return a }

// TestPowerCutWhileValuesAreCompacted: a power cut while gc has the index compact its values. The kernel has written back the log of
// Badger's memory, and not what was appended to the log of values since the last sync.
func TestPowerCutWhileValuesAreCompacted(t *testing.T) {
	o := testOptions(t)
	h := &atMessage{text: "Removing fid"}
	o.Logger = slog.New(h)
	o.Tuning.IndexMemory = 1 << 20
	synced := map[string][]byte{} // the logs of values as of the last sync
	o.Tuning.IndexSynced = func(dir string) {
		clear(synced)
		names, _ := filepath.Glob(filepath.Join(dir, "*.vlog"))
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Error(err)
			}
			synced[filepath.Base(n)] = b
		}
	}
	files := func(i int) map[string][]byte {
		out := map[string][]byte{}
		for k := range 30 {
			out[fmt.Sprintf("a-file-with-a-name-of-some-length-%d.img", k)] = memory(uint64(i*100+k), 6000)
		}
		return out
	}
	s := newTestStore(t, o)
	write(t, s, "kept", files(0))
	for i := 1; i < 8; i++ {
		write(t, s, fmt.Sprint("c", i), files(i))
	}
	for i := 1; i < 8; i++ {
		if err := s.Remove(t.Context(), []string{fmt.Sprint("c", i)}); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s) // a table, and another log of values
	}
	for range 100 {
		if b, err := os.ReadFile(filepath.Join(s.Dir(), "index", "DISCARD")); err == nil && !bytes.Equal(b[:16], make([]byte, 16)) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	image := filepath.Join(t.TempDir(), "store")
	cuts := 0
	cut := func() {
		if cuts++; cuts > 1 {
			return
		}
		if err := os.CopyFS(image, os.DirFS(s.Dir())); err != nil {
			t.Error(err)
		}
		for name, b := range synced {
			if err := os.WriteFile(filepath.Join(image, "index", name), b, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	h.fn.Store(&cut)
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	h.fn.Store(nil)
	if cuts == 0 {
		t.Fatal("nothing was compacted")
	}
	mustHold(t, s, "kept", files(0))
	after := openTestStore(t, image, testOptions(t))
	mustHold(t, after, "kept", files(0))
	res, err := after.Verify(t.Context(), upkeep.VerifyOptions{Subset: 1})
	if err != nil || len(res.Problems)+len(res.SetAside) > 0 {
		t.Errorf("verify: %+v, %v", res, err)
	}
}
