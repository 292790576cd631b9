package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/arena"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/reading"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(runChild(mode))
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.init.0.func1"))
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

func testOptions(t testing.TB) Options {
	return Options{Logger: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
		FreeFloor: 1, CacheSize: 8 << 20}
}

// newStoreAt makes and opens a store, closed at the end of the test.
func newTestStore(t testing.TB, o Options) *Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	return openTestStore(t, dir, o)
}

func openTestStore(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return openTestStore(t, s.dir, s.o)
}

// memory makes n bytes as a process has them: random pages, zero pages, text.
func memory(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for off := 0; off < n; {
		k := min((1+r.IntN(200))*4096, n-off)
		switch r.IntN(4) {
		case 0:
		case 1:
			for i := range b[off : off+k] {
				b[off+i] = "the heap of a process "[i%22]
			}
		default:
			src := rand.NewChaCha8([32]byte{byte(r.Uint32()), byte(r.Uint32()), 1})
			src.Read(b[off : off+k])
		}
		off += k
	}
	return b
}

func write(t testing.TB, s *Store, name string, files map[string][]byte) {
	t.Helper()
	d, err := s.Create(t.Context(), name, drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, files)
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func fill(t testing.TB, d *drafts.Draft, files map[string][]byte) {
	t.Helper()
	for p, content := range files {
		f, err := d.Create(p, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		for off := 0; off < len(content); {
			n := min(1<<20, len(content)-off)
			if _, err := f.WriteAt(content[off:off+n], int64(off)); err != nil {
				t.Fatal(err)
			}
			off += n
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func read(s *Store, name, p string) ([]byte, error) {
	c, err := s.Checkpoint(name)
	if err != nil {
		return nil, err
	}
	f, err := c.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, f.Size())
	_, err = f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, err
}

// openFile opens a file of a checkpoint until the end of the test, or until it is closed before.
func openFile(t testing.TB, s *Store, name, p string) *reading.File {
	t.Helper()
	c, err := s.Checkpoint(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustHold(t testing.TB, s *Store, name string, files map[string][]byte) {
	t.Helper()
	for p, want := range files {
		got, err := read(s, name, p)
		if err != nil {
			t.Errorf("%s/%s: %v", name, p, err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s/%s: %d bytes came back different from the %d written", name, p, len(got), len(want))
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, comp := range []Compression{CompressAuto, CompressZstd, CompressS2, CompressNone} {
		t.Run(string(comp), func(t *testing.T) {
			o := testOptions(t)
			o.Compression = comp
			s := newTestStore(t, o)
			files := map[string][]byte{
				"empty": nil, "tiny": []byte("x"), "short": memory(1, 4095), "page": memory(2, 4096),
				"odd":         memory(3, 123457),
				"pages-1.img": memory(4, 40<<20), "zeros": make([]byte, 5<<20),
				"amdgpu-pages-1-0001.img": append(make([]byte, 8), memory(5, 3<<20)...),
			}
			write(t, s, "a", files)
			mustHold(t, s, "a", files)
			s = reopen(t, s)
			mustHold(t, s, "a", files)
			scratch := 2 * s.o.Workers * arena.Size(chunk.MaxEncoded(s.config.Chunk.Max)) // the workers keep one each
			if n := s.chunks.Arena.InUse() - s.reading.CacheBytes(); n > int64(scratch) {
				t.Errorf("%d bytes of buffers are not given back", n-int64(scratch))
			}
		})
	}
}

func TestFSView(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, err := s.Create(t.Context(), "a", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Mkdir("checkpoint", 0o755), d.Mkdir("empty", 0o700)); err != nil {
		t.Fatal(err)
	}
	fill(t, d, map[string][]byte{"spec.dump": []byte("{}"), "checkpoint/pages-1.img": memory(1, 70000)})
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := s.Checkpoint("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(c.FS(), "spec.dump", "checkpoint/pages-1.img", "empty"); err != nil {
		t.Error(err)
	}
}

func TestSameContentIsStoredOnce(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	content := memory(1, 24<<20)
	write(t, s, "a", map[string][]byte{"pages-1.img": content})
	before := s.Stats().BytesStored
	shifted := append(memory(9, 3*4096), content...)
	write(t, s, "b", map[string][]byte{"pages-7.img": shifted})
	if more := s.Stats().BytesStored - before; more > 2<<20 {
		t.Errorf("the same content three pages further on took %d bytes again", more)
	}
	mustHold(t, s, "b", map[string][]byte{"pages-7.img": shifted})
}

// TestRandomWrites holds a draft's file against a plain slice under any mix of writes, truncations and holes.
func TestRandomWrites(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newTestStore(t, testOptions(t))
			name := "plain"
			if seed%2 == 1 {
				name = "amdgpu-pages-1-0001.img"
			}
			d, err := s.Create(t.Context(), "a", drafts.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			f, err := d.Create(name, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(seed, 7))
			var model []byte
			grow := func(n int64) {
				if n > int64(len(model)) {
					model = append(model, make([]byte, n-int64(len(model)))...)
				}
			}
			for step := range 300 {
				off := r.Int64N(int64(len(model)) + 1)
				switch k := r.IntN(10); {
				case k < 5: // append
					p := memory(r.Uint64(), r.IntN(300000))
					_, err = f.WriteAt(p, int64(len(model)))
					model = append(model, p...)
				case k < 7: // overwrite, maybe beyond the end
					p := memory(r.Uint64(), r.IntN(100000))
					off += int64(r.IntN(2)) * int64(r.IntN(50000))
					_, err = f.WriteAt(p, off)
					grow(off + int64(len(p)))
					copy(model[off:], p)
				case k < 8:
					err = f.Truncate(off)
					model = model[:off]
				case k < 9:
					n := off + r.Int64N(200000)
					err = f.Truncate(n)
					model = model[:min(n, int64(len(model)))]
					grow(n)
				default:
					n := r.Int64N(100000)
					err = f.PunchHole(off, n)
					clear(model[off:min(off+n, int64(len(model)))])
				}
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if f.Size() != int64(len(model)) {
					t.Fatalf("step %d: size %d, want %d", step, f.Size(), len(model))
				}
				if step%20 == 0 {
					got := make([]byte, len(model))
					if _, err := f.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					if !bytes.Equal(got, model) {
						t.Fatalf("step %d: read back different", step)
					}
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Seal(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustHold(t, s, "a", map[string][]byte{name: model})
			s = reopen(t, s)
			mustHold(t, s, "a", map[string][]byte{name: model})
		})
	}
}

func TestSparseFile(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, err := s.Create(t.Context(), "a", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("pages-1.img", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 30
	if _, err := f.WriteAt([]byte("the end"), size-7); err != nil {
		t.Fatal(err)
	}
	f.Close()
	info, err := d.Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Logical != size || info.Zero < size-8192 {
		t.Errorf("logical %d, zero %d", info.Logical, info.Zero)
	}
	r := openFile(t, s, "a", "pages-1.img")
	b := make([]byte, 20)
	if n, err := r.ReadAt(b, size-20); n != 20 || err != nil || string(b[13:]) != "the end" {
		t.Errorf("%d, %v, %q", n, err, b)
	}
}

func TestDraftStates(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	ctx := context.Background()
	d, err := s.Create(ctx, "a", drafts.CreateOptions{Tags: []string{"nightly"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, "a", drafts.CreateOptions{}); fault.ClassOf(err) != fault.Exists {
		t.Errorf("a second of the name: %v", err)
	}
	if _, err := s.Checkpoint("a"); fault.ClassOf(err) != fault.InUse {
		t.Errorf("opened while written: %v", err)
	}
	if err := s.Remove(ctx, []string{"a"}); fault.ClassOf(err) != fault.InUse {
		t.Errorf("removed while written: %v", err)
	}
	f, err := d.Create("f", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); fault.ClassOf(err) != fault.ReadOnly {
		t.Errorf("written after sealing: %v", err)
	}
	f.Close()
	for _, ref := range []string{"a", "nightly", idOf(t, s, "a")[:6]} {
		if _, err := s.Checkpoint(ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".hidden", "a/b", "../x", "x\x00", string(make([]byte, 200)), "a,b",
		"a b", "a\nb", "+a", "ä", "a\x7f", "a*", "a\\b"} {
		if _, err := s.Create(ctx, name, drafts.CreateOptions{}); fault.ClassOf(err) != fault.Invalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	e, err := s.Create(ctx, "b", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"", ".", "..", "../x", "/x", "a//b", "x/", "x\x00"} {
		if _, err := e.Create(p, 0o644); fault.ClassOf(err) != fault.Invalid {
			t.Errorf("path %q: %v", p, err)
		}
	}
	if err := e.SetParent("a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, []string{"a"}); fault.ClassOf(err) != fault.InUse || fault.HintOf(err) == "" {
		t.Errorf("a parent was removed: %v", err)
	}
	open, err := e.Create("pages-1.img", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := e.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := open.WriteAt([]byte("x"), 0); fault.ClassOf(err) != fault.ReadOnly {
		t.Errorf("a write to a checkpoint that was given up: %v", err)
	}
	if err := s.Remove(ctx, []string{"a"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Checkpoint("a"); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("after removal: %v", err)
	}
	s = reopen(t, s)
	if names, _ := s.Names(ctx); len(names) != 0 {
		t.Errorf("left: %+v", names)
	}
}

func TestSecondOpenIsToldTheHolder(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	_, err := Open(t.Context(), s.dir, testOptions(t))
	if fault.ClassOf(err) != fault.InUse || !bytes.Contains([]byte(err.Error()), []byte(fmt.Sprint(os.Getpid()))) {
		t.Errorf("%v", err)
	}
}
