package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is a store beside the shared one.
type machine struct {
	*index.Store
	remote *remote.Store
	dir    string
}

// hasty makes requests again without a pause.
var hasty = remote.Options{Timeout: 5 * time.Second,
	Catalog: catalog.Options{Wait: func(context.Context, int) error { return nil }}}

func newMachine(t *testing.T, b bucket.Bucket) *machine {
	t.Helper()
	return newMachineWith(t, b, nil)
}

func newMachineWith(t *testing.T, b bucket.Bucket, pushes remote.Pushes) *machine {
	t.Helper()
	o := hasty
	o.Pushes = pushes
	s, _, err := remote.Make(t.Context(), b, chunk.DefaultParams(), o)
	must(t, err)
	m := &machine{remote: s, dir: filepath.Join(t.TempDir(), "store")}
	must(t, index.Init(m.dir, index.InitOptions{}))
	m.open(t)
	t.Cleanup(func() { m.Close() })
	return m
}

func (m *machine) open(t *testing.T) {
	t.Helper()
	cache, err := nodecache.Open(nodecache.Options{Dir: filepath.Join(m.dir, "cache"), Limit: 1 << 30,
		Storage: storage.Disk{}, Source: m.remote, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	m.Store, err = index.Open(t.Context(), m.dir, index.Options{Distant: cache, FreeFloor: 1})
	must(t, err)
}

// reopen opens the machine's store anew.
func (m *machine) reopen(t *testing.T) {
	t.Helper()
	must(t, m.Close())
	m.open(t)
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

func (m *machine) dump(t *testing.T, name string, files map[string][]byte) {
	t.Helper()
	d, err := m.Create(t.Context(), name, index.CreateOptions{})
	must(t, err)
	for p, data := range files {
		f, err := d.Create(p, 0o644)
		must(t, err)
		_, err = f.WriteAt(data, 0)
		must(t, err)
		must(t, f.Close())
	}
	_, err = d.Seal(t.Context())
	must(t, err)
}

func (m *machine) holds(name string, files map[string][]byte) error {
	c, err := m.Checkpoint(name)
	if err != nil {
		return err
	}
	for p, want := range files {
		got, err := fs.ReadFile(c.FS(), p)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s of %s has other bytes", p, name)
		}
	}
	return nil
}

// TestPushAndPull takes checkpoints from one machine to another, and back under another name.
func TestPushAndPull(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	if one.remote.Config() != two.remote.Config() {
		t.Fatal("they share nothing")
	}
	web := map[string][]byte{"pages-1.img": noise(1, 5<<20), "core.img": []byte("core")}
	one.dump(t, "web", web)
	p, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	if p.Already || p.Packs == 0 || p.Bytes < 5<<20 || p.Bytes > 6<<20 {
		t.Errorf("pushed %+v", p)
	}
	p, err = one.remote.Push(t.Context(), one.Store, "web")
	if err != nil || !p.Already {
		t.Errorf("pushed again: %+v, %v", p, err)
	}
	list, err := two.remote.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "web" || list[0].Logical != 5<<20+4 {
		t.Errorf("the list is %+v, %v", list, err)
	}
	_, err = two.remote.Pull(t.Context(), two.Store, "web", "web")
	must(t, err)
	must(t, two.holds("web", web))

	// What the second machine adds to it goes, and no more.
	more := map[string][]byte{"pages-1.img": append(bytes.Clone(web["pages-1.img"]), noise(2, 1<<20)...)}
	two.dump(t, "web-2", more)
	p, err = two.remote.Push(t.Context(), two.Store, "web-2")
	if err != nil || p.Bytes > 2<<20 || p.Known == 0 {
		t.Errorf("pushed %+v, %v", p, err)
	}
	_, err = one.remote.Pull(t.Context(), one.Store, "web-2", "theirs")
	must(t, err)
	must(t, one.holds("theirs", more))

	two.dump(t, "other", map[string][]byte{"a": noise(3, 100)})
	must(t, two.Rename(t.Context(), "web", "old"))
	must(t, two.Rename(t.Context(), "other", "web"))
	if _, err := two.remote.Push(t.Context(), two.Store, "web"); index.ClassOf(err) != index.Exists {
		t.Errorf("pushed over another one: %v", err)
	}
	if _, err := two.remote.Pull(t.Context(), two.Store, "none", "none"); index.ClassOf(err) != index.NotFound {
		t.Errorf("pulled nothing: %v", err)
	}
}

// TestLearned dumps the same content on two machines that have not seen each other: the second sends what differs.
func TestLearned(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	model := noise(1, 6<<20)
	one.dump(t, "a", map[string][]byte{"model": model, "own": noise(2, 100_000)})
	_, err := one.remote.Push(t.Context(), one.Store, "a")
	must(t, err)
	files := map[string][]byte{"model": model, "own": noise(3, 200_000)}
	two.dump(t, "b", files)
	for range 2 {
		must(t, two.remote.Learn(t.Context(), two.Store))
	}
	p, err := two.remote.Push(t.Context(), two.Store, "b")
	must(t, err)
	if p.Bytes > 300_000 || p.Known == 0 {
		t.Errorf("pushed %+v for 200,000 bytes more", p)
	}
	three := newMachine(t, b)
	_, err = three.remote.Pull(t.Context(), three.Store, "b", "b")
	must(t, err)
	must(t, three.holds("b", files))
}

// TestCollected removes one of two checkpoints that share most, collects, and reads the other; a push that knew the
// collected packs uploads anew.
func TestCollected(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	a := map[string][]byte{"pages-1.img": noise(1, 3<<20)}
	c := map[string][]byte{"pages-1.img": noise(1, 3<<20), "pages-2.img": noise(2, 1<<20)}
	one.dump(t, "a", a)
	one.dump(t, "c", c)
	for _, name := range []string{"a", "c"} {
		_, err := one.remote.Push(t.Context(), one.Store, name)
		must(t, err)
	}
	collect := func() {
		t.Helper()
		g := one.remote.Collector(catalog.Patience{})
		for range 2 {
			_, err := g.Collect(t.Context())
			must(t, err)
		}
	}
	must(t, one.remote.Remove(t.Context(), "a"))
	collect()
	_, err := two.remote.Pull(t.Context(), two.Store, "c", "c")
	must(t, err)
	must(t, two.holds("c", c))
	if _, err := two.remote.Pull(t.Context(), two.Store, "a", "a"); index.ClassOf(err) != index.NotFound {
		t.Errorf("pulled what was removed: %v", err)
	}

	must(t, one.remote.Remove(t.Context(), "c"))
	collect()
	if left := b.Keys(); len(left) > 5 {
		t.Errorf("objects are left: %v", left)
	}
	p, err := one.remote.Push(t.Context(), one.Store, "c")
	if err != nil || p.Bytes < 4<<20 {
		t.Errorf("pushed %+v of what the bucket has not, %v", p, err)
	}
	three := newMachine(t, b)
	_, err = three.remote.Pull(t.Context(), three.Store, "c", "c")
	must(t, err)
	must(t, three.holds("c", c))
}

// TestRemovedWhileItIsRead pulls, has it removed and collected elsewhere, and reads: an error that says so.
func TestRemovedWhileItIsRead(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	a := map[string][]byte{"pages-1.img": noise(1, 3<<20)}
	one.dump(t, "a", a)
	_, err := one.remote.Push(t.Context(), one.Store, "a")
	must(t, err)
	_, err = two.remote.Pull(t.Context(), two.Store, "a", "a")
	must(t, err)
	must(t, one.remote.Remove(t.Context(), "a"))
	g := one.remote.Collector(catalog.Patience{})
	for range 2 {
		_, err := g.Collect(t.Context())
		must(t, err)
	}
	err = two.holds("a", a)
	if err == nil || index.ClassOf(err) == index.Corrupt || !strings.Contains(err.Error(), "fetch") {
		t.Errorf("read what is gone: %v", err)
	}
}

// TestPushFailsAnywhere lets every request fail in turn, with and without its effect, for good: the push fails or
// succeeds, what it leaves can be read by others or is not there, and afterwards it can be pushed: at once by a machine
// that remembers its pushes, by others when a collector has given the name free.
func TestPushFailsAnywhere(t *testing.T) {
	files := map[string][]byte{"pages-1.img": noise(1, 300_000)}
	for round := range 4 {
		lost, remembers := round%2, round >= 2
		for k := int64(1); ; k++ {
			var n atomic.Int64
			var broken atomic.Bool
			b := memory.New(memory.Hooks{})
			faulty := &failing{Bucket: b, fail: func() (happens bool, err error) {
				if broken.Load() && n.Add(1) >= k {
					return lost == 1 && n.Load() == k, bucket.Fail(bucket.Transient, "request", "", "the link is cut")
				}
				return true, nil
			}}
			var pushes remote.Pushes
			if remembers {
				pushes = remembered{}
			}
			one := newMachineWith(t, faulty, pushes)
			one.dump(t, "a", files)
			broken.Store(true)
			_, err := one.remote.Push(t.Context(), one.Store, "a")
			broken.Store(false)
			if err == nil && n.Load() < k {
				if k < 4 {
					t.Errorf("a push makes %d requests", n.Load())
				}
				break
			}
			two := newMachine(t, b)
			if _, perr := two.remote.Pull(t.Context(), two.Store, "a", "a"); perr == nil {
				must(t, two.holds("a", files))
			} else if err == nil {
				t.Fatalf("request %d: pushed, and nobody can pull it: %v", k, perr)
			}
			if g := one.remote.Collector(catalog.Patience{}); !remembers {
				for range 3 { // gives the name free
					_, err := g.Collect(t.Context())
					must(t, err)
				}
			}
			_, err = one.remote.Push(t.Context(), one.Store, "a")
			if err != nil {
				t.Fatalf("request %d: pushed again: %v", k, err)
			}
			three := newMachine(t, b)
			_, err = three.remote.Pull(t.Context(), three.Store, "a", "a")
			must(t, err)
			must(t, three.holds("a", files))
		}
	}
}

// remembered is of remote.Pushes.
type remembered map[string]string

func (r remembered) Begun(name, nonce string) error   { r[name] = nonce; return nil }
func (r remembered) Left(name string) (string, error) { return r[name], nil }
func (r remembered) Ended(name string)                { delete(r, name) }

// TestKilledPushIsTakenUp leaves a push behind, as one that is killed does: the same machine pushes anew at once,
// another one is told that the name is taken.
func TestKilledPushIsTakenUp(t *testing.T) {
	b := memory.New(memory.Hooks{})
	files := map[string][]byte{"a": noise(1, 50_000)}
	one, two := newMachine(t, b), newMachine(t, b)
	one.dump(t, "a", files)
	two.dump(t, "a", files)
	left := remembered{}
	o := hasty
	o.Pushes = left
	s, err := remote.Open(t.Context(), b, o)
	must(t, err)
	d, err := catalog.New(b, hasty.Catalog).Begin(t.Context(), "a")
	must(t, err)
	left["a"] = d.Nonce()
	if _, err := two.remote.Push(t.Context(), two.Store, "a"); index.ClassOf(err) != index.InUse {
		t.Errorf("pushed beside another: %v", err)
	}
	_, err = s.Push(t.Context(), one.Store, "a")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("remembered: %v", left)
	}
	if err := d.Seal(t.Context(), nil, nil); !errors.Is(err, catalog.ErrTaken) {
		t.Errorf("the push that was given up is sealed: %v", err)
	}
	three := newMachine(t, b)
	_, err = three.remote.Pull(t.Context(), three.Store, "a", "a")
	must(t, err)
	must(t, three.holds("a", files))
}

// failing fails some requests.
type failing struct {
	bucket.Bucket
	fail func() (happens bool, err error)
}

func (f *failing) Get(ctx context.Context, key string, p []byte, off int64) (int, bucket.Info, error) {
	if _, err := f.fail(); err != nil {
		return 0, bucket.Info{}, err
	}
	return f.Bucket.Get(ctx, key, p, off)
}

func (f *failing) Put(ctx context.Context, key string, r io.ReaderAt, size int64, c bucket.Cond) (string, error) {
	happens, err := f.fail()
	if err == nil || happens {
		etag, perr := f.Bucket.Put(ctx, key, r, size, c)
		if err == nil {
			return etag, perr
		}
	}
	return "", err
}

func (f *failing) List(ctx context.Context, prefix, after string) ([]bucket.Info, bool, error) {
	if _, err := f.fail(); err != nil {
		return nil, false, err
	}
	return f.Bucket.List(ctx, prefix, after)
}

// TestManyPushAtOnce lets machines push and remove checkpoints of common content under the same names while a collector
// runs: whoever was told that a checkpoint stands can pull it.
func TestManyPushAtOnce(t *testing.T) {
	b := memory.New(memory.Hooks{})
	var all sync.WaitGroup
	stop := make(chan struct{})
	sweeper := newMachine(t, b)
	all.Go(func() {
		g := sweeper.remote.Collector(catalog.Patience{Pending: time.Hour, Removed: time.Hour})
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = g.Collect(context.Background())
			}
		}
	})
	var pushers sync.WaitGroup
	for w := range 3 {
		m := newMachine(t, b)
		pushers.Go(func() {
			for i := range 6 {
				name := fmt.Sprintf("%d-%d", w, i)
				own := noise(uint64(100+10*w+i), 5000)
				files := map[string][]byte{"pages-1.img": noise(uint64(i), 200_000), "own": own}
				m.dump(t, name, files)
				if _, err := m.remote.Push(context.Background(), m.Store, name); err != nil {
					t.Errorf("push %s: %v", name, err)
					return
				}
				if i%3 == 2 {
					if err := m.remote.Remove(context.Background(), name); err != nil {
						t.Errorf("remove %s: %v", name, err)
					}
					continue
				}
				if _, err := m.remote.Pull(context.Background(), sweeper.Store, name, name); err != nil {
					t.Errorf("pull %s: %v", name, err)
				} else if err := sweeper.holds(name, files); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pushers.Wait()
	close(stop)
	all.Wait()
}

// TestParents pushes an incremental checkpoint: the one that it needs goes and comes along.
func TestParents(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newMachine(t, b), newMachine(t, b)
	first, second := map[string][]byte{"a": noise(1, 5000)}, map[string][]byte{"b": noise(2, 5000)}
	one.dump(t, "first", first)
	d, err := one.Create(t.Context(), "second", index.CreateOptions{})
	must(t, err)
	must(t, d.SetParent("first"))
	f, err := d.Create("b", 0o644)
	must(t, err)
	_, err = f.WriteAt(second["b"], 0)
	must(t, err)
	must(t, f.Close())
	_, err = d.Seal(t.Context())
	must(t, err)
	_, err = one.remote.Push(t.Context(), one.Store, "second")
	must(t, err)
	info, err := two.remote.Pull(t.Context(), two.Store, "second", "mine")
	must(t, err)
	if info.Parent != "first" {
		t.Errorf("the parent is %q", info.Parent)
	}
	must(t, two.holds("mine", second))
	must(t, two.holds("first", first))
}

// TestNoSharedStore opens a bucket without one, one of a later version, and one with something else in it.
func TestNoSharedStore(t *testing.T) {
	for text, class := range map[string]index.Class{
		"": index.NoStore, "{": index.Corrupt, `{"format": 3, "id": "00"}`: index.Unsupported,
		`{"format": 1, "id": "00"}`: index.Corrupt,
	} {
		b := memory.New(memory.Hooks{})
		if text != "" {
			_, err := b.Put(t.Context(), "config", strings.NewReader(text), int64(len(text)), bucket.Cond{})
			must(t, err)
		}
		if _, err := remote.Open(t.Context(), b, hasty); index.ClassOf(err) != class {
			t.Errorf("%q: %v", text, err)
		}
		_, _, err := remote.Make(t.Context(), b, chunk.DefaultParams(), hasty)
		if text != "" && index.ClassOf(err) != class {
			t.Errorf("%q: made: %v", text, err)
		}
	}
	away := &failing{memory.New(memory.Hooks{}), func() (bool, error) {
		return false, bucket.Fail(bucket.Denied, "get", "config", "no")
	}}
	_, err := remote.Open(t.Context(), away, hasty)
	if index.ClassOf(err) != index.Unreachable || errors.Is(err, context.Canceled) {
		t.Errorf("denied: %v", err)
	}
}
