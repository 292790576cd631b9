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

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// manyFiles has a manifest that the index keeps in its logs of values.
func manyFiles(i int) map[string][]byte { return someFiles(i, 30) }

func someFiles(i, n int) map[string][]byte {
	out := map[string][]byte{}
	for k := range n {
		out[fmt.Sprintf("a-file-with-a-name-of-some-length-%d.img", k)] = memory(uint64(i*100+k), 6000)
	}
	return out
}

// TestValuesLostWithTheirLog: after a power cut the index may have what was written to the log of its memory and not
// the values that this refers to, which are in a log of their own: the kernel writes both back when it likes. What was
// sealed is there all the same.
func TestValuesLostWithTheirLog(t *testing.T) {
	t.Parallel()
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
	for range 3 {
		write(t, s, fmt.Sprint("c", sealed), manyFiles(sealed))
		sealed++
	}
	if len(cuts) < 3 {
		t.Fatalf("%d moments between a write to the index and its sync", len(cuts))
	}
	for i, c := range cuts {
		if i%(1+len(cuts)/10) != 0 {
			continue // ten of them will do
		}
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
			mustHold(t, after, fmt.Sprint("c", k), manyFiles(k))
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

// TestPowerCutWhileValuesAreCompacted: a power cut while gc has the index compact its values. The kernel has written
// back the log of Badger's memory, and not what was appended to the log of values since the last sync.
func TestPowerCutWhileValuesAreCompacted(t *testing.T) {
	t.Parallel()
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
	s := newTestStore(t, o)
	write(t, s, "kept", manyFiles(0))
	for i := 1; i < 8; i++ {
		write(t, s, fmt.Sprint("c", i), manyFiles(i))
	}
	for i := 1; i < 8; i++ {
		if err := s.Remove(t.Context(), []string{fmt.Sprint("c", i)}); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s) // a table, and another log of values
	}
	waitWaste(s)
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
	mustHold(t, s, "kept", manyFiles(0))
	after := openTestStore(t, image, testOptions(t))
	mustHold(t, after, "kept", manyFiles(0))
	res, err := after.Verify(t.Context(), upkeep.VerifyOptions{Subset: 1})
	if err != nil || len(res.Problems)+len(res.SetAside) > 0 {
		t.Errorf("verify: %+v, %v", res, err)
	}
}

// waitWaste waits until the index has something to compact.
func waitWaste(s *Store) {
	for range 100 {
		if b, err := os.ReadFile(filepath.Join(s.Dir(), "index", "DISCARD")); err == nil &&
			!bytes.Equal(b[:16], make([]byte, 16)) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestHoleInLogOfValues: the kernel writes the pages of a log back in any order. A power cut leaves one out, in a log
// that was full, and what lies behind it is there. Badger reads a log up to the hole when it compacts it, and removes
// it.
func TestHoleInLogOfValues(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.Tuning.IndexMemory = 1 << 20
	const (
		log  = "000001.vlog"
		page = 4096
	)
	var s *Store
	held := func() []byte {
		b, err := os.ReadFile(filepath.Join(s.Dir(), "index", log))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.TrimRight(b, "\x00")
	}
	image := filepath.Join(t.TempDir(), "store")
	synced, armed := 0, false
	o.Tuning.IndexSynced = func(string) { synced = len(held()) }
	o.Tuning.IndexWrote = func(string) {
		if !armed {
			return
		}
		armed = false
		if err := os.CopyFS(image, os.DirFS(s.Dir())); err != nil {
			t.Error(err)
		}
		b := held() // the length of a log that is full
		hole := (synced + page - 1) / page * page
		clear(b[hole : hole+page])
		next := make([]byte, 1<<20)
		copy(next, b[:20]) // the header: the next log has nothing yet
		for name, b := range map[string][]byte{log: b, "000002.vlog": next} {
			if err := os.WriteFile(filepath.Join(image, "index", name), b, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	s = newTestStore(t, o)
	for i := 1; i < 8; i++ {
		write(t, s, fmt.Sprint("c", i), someFiles(i, 100))
	}
	var puts []chunks.Put
	for i := range 6 {
		puts = append(puts, chunks.Put{Key: fmt.Sprint("values/", i), Payload: memory(uint64(i), 3000)})
	}
	armed = true
	if err := s.chunks.Commit(puts); err != nil {
		t.Fatal(err)
	}
	mustHave := func(s *Store) {
		t.Helper()
		for _, p := range puts {
			if _, value, err := s.chunks.DB.Meta(p.Key); err != nil || !bytes.Equal(value, p.Payload) {
				t.Errorf("%s: %d bytes, %v", p.Key, len(value), err)
			}
		}
	}
	o.Tuning.IndexSynced, o.Tuning.IndexWrote = nil, nil
	after := openTestStore(t, image, o)
	mustHave(after)
	for i := 1; i < 8; i++ {
		if err := after.Remove(t.Context(), []string{fmt.Sprint("c", i)}); err != nil {
			t.Fatal(err)
		}
		after = reopen(t, after)
	}
	waitWaste(after)
	if _, err := after.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	after = reopen(t, after)
	if _, err := os.Stat(filepath.Join(image, "index", log)); err == nil {
		t.Fatal("the log was not compacted")
	}
	mustHave(after)
}
