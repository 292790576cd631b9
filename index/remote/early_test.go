package remote_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// writing is a checkpoint that is being written and uploaded.
type writing struct {
	t *testing.T
	m *machine
	d *index.Draft
	f *index.DraftFile

	ended sync.WaitGroup
	err   error
}

func (m *machine) begin(t *testing.T, ctx context.Context, name string, first []byte) *writing {
	t.Helper()
	d, err := m.Create(t.Context(), name, index.CreateOptions{})
	must(t, err)
	w := &writing{t: t, m: m, d: d}
	w.f, err = d.Create("pages-1.img", 0o600)
	must(t, err)
	for id := range m.Writing() {
		w.ended.Go(func() { w.err = m.remote.PushEarly(ctx, m.Store, id, name) })
	}
	_, err = w.f.WriteAt(first, 0)
	must(t, err)
	return w
}

// packs gives the bytes of the packs in a bucket.
func packs(t *testing.T, b bucket.Bucket) (bytes int64) {
	t.Helper()
	for i, err := range bucket.All(t.Context(), b, "packs/") {
		must(t, err)
		bytes += i.Size
	}
	return bytes
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never comes that %s", what)
		}
	}
}

// TestPushEarly writes a checkpoint of which the bucket has a part before it is sealed: what was uploaded is not
// uploaded again, and what others have there is not uploaded at all. A checkpoint that is given up, and one that is
// renamed, are not in the way of others.
func TestPushEarly(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two, three := newMachine(t, b), newMachine(t, b), newMachine(t, b)
	model := noise(1, 80<<20)
	w := one.begin(t, t.Context(), "web", model[:72<<20])
	until(t, "a pack is in the bucket", func() bool { return packs(t, b) > 0 })
	if list, err := two.remote.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("not sealed, and listed: %v, %v", list, err)
	}
	_, err := w.f.WriteAt(noise(9, 5000), 1<<20) // some of what is uploaded by now is not in it in the end
	must(t, err)
	_, err = w.f.WriteAt(model[72<<20:], 72<<20)
	must(t, err)
	must(t, w.f.Close())
	_, err = w.d.Seal(t.Context())
	must(t, err)
	p, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	w.ended.Wait()
	must(t, w.err)
	if n := packs(t, b); n > int64(len(model))*103/100 || p.Bytes != n {
		t.Errorf("%d bytes are in the bucket for %d, and %+v was told", n, len(model), p)
	}
	want := append([]byte(nil), model...)
	copy(want[1<<20:], noise(9, 5000))
	_, err = two.remote.Pull(t.Context(), two.Store, "web", "web")
	must(t, err)
	must(t, two.holds("web", map[string][]byte{"pages-1.img": want}))

	before := packs(t, b)
	w = three.begin(t, t.Context(), "other", model[:72<<20])
	until(t, "the name is taken", func() bool {
		_, err := b.Stat(t.Context(), "roots/other")
		return err == nil
	})
	must(t, w.f.Close())
	_, err = w.d.Seal(t.Context())
	must(t, err)
	w.ended.Wait()
	must(t, w.err)
	must(t, three.Rename(t.Context(), "other", "renamed"))
	p, err = three.remote.Push(t.Context(), three.Store, "renamed")
	must(t, err)
	if more := packs(t, b) - before; more > 4<<20 || p.Known == 0 {
		t.Errorf("%d bytes more for what another machine has there: %+v", more, p)
	}
	must(t, three.holds("renamed", map[string][]byte{"pages-1.img": model[:72<<20]}))

	w = two.begin(t, t.Context(), "gone", noise(2, 72<<20))
	until(t, "a pack is in the bucket", func() bool { return packs(t, b) > before+(50<<20) })
	must(t, w.f.Close())
	must(t, w.d.Abort())
	w.ended.Wait()
	must(t, w.err)
	for _, name := range []string{"other", "gone"} {
		one.dump(t, name, map[string][]byte{"a": noise(3, 1000)})
		_, err = one.remote.Push(t.Context(), one.Store, name)
		must(t, err)
	}
}

// TestPushEarlyFails has the name taken in the bucket, and the bucket fail: the checkpoint is sealed all the same, and
// pushed when that is over.
func TestPushEarlyFails(t *testing.T) {
	m := memory.New(memory.Hooks{})
	b := &flaky{Bucket: m}
	one, two := newMachine(t, b), newMachine(t, m)
	two.dump(t, "web", map[string][]byte{"a": noise(3, 1000)})
	_, err := two.remote.Push(t.Context(), two.Store, "web")
	must(t, err)
	content := noise(1, 80<<20)
	for _, name := range []string{"web", "other"} {
		b.fail(name == "other")
		w := one.begin(t, t.Context(), name, content)
		if name == "web" {
			w.ended.Wait()
			if index.ClassOf(w.err) != index.Exists {
				t.Errorf("the name is taken, and: %v", w.err)
			}
		} else {
			until(t, "a pack is refused", b.refused)
		}
		must(t, w.f.Close())
		_, err := w.d.Seal(t.Context())
		must(t, err)
		w.ended.Wait()
	}
	b.fail(false)
	if _, err := one.remote.Push(t.Context(), one.Store, "web"); index.ClassOf(err) != index.Exists {
		t.Errorf("another checkpoint of that name is there, and: %v", err)
	}
	_, err = one.remote.Push(t.Context(), one.Store, "other")
	must(t, err)
	_, err = two.remote.Pull(t.Context(), two.Store, "other", "other")
	must(t, err)
	must(t, two.holds("other", map[string][]byte{"pages-1.img": content}))
}

// flaky is a bucket to which no packs can be written for a while.
type flaky struct {
	bucket.Bucket
	mu     sync.Mutex
	failed bool
	times  int
}

func (f *flaky) refused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times > 0
}

func (f *flaky) fail(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = yes
}

func (f *flaky) Put(ctx context.Context, key string, c io.ReaderAt, size int64, cond bucket.Cond) (string, error) {
	f.mu.Lock()
	failed := f.failed && strings.HasPrefix(key, "packs/")
	if failed {
		f.times++
	}
	f.mu.Unlock()
	if failed {
		return "", bucket.Fail(bucket.Denied, "put", key, "not now")
	}
	return f.Bucket.Put(ctx, key, c, size, cond)
}

// TestPushBesideItsEarlyBegin seals a checkpoint and pushes it while PushEarly is still about to take its name: the
// push keeps the name.
func TestPushBesideItsEarlyBegin(t *testing.T) {
	b := &held{Bucket: memory.New(memory.Hooks{}), roots: make(chan struct{}), packs: make(chan struct{})}
	_, _, err := remote.Make(t.Context(), b.Bucket, chunk.DefaultParams(), hasty) // which lists roots
	must(t, err)
	one := newMachineWith(t, b, &pushesOf{noted: map[string]string{}})
	content := noise(4, 80<<20)
	w := one.begin(t, t.Context(), "web", content)
	until(t, "the early push looks around in the bucket", func() bool { return b.waiting("roots") })
	must(t, w.f.Close())
	_, err = w.d.Seal(t.Context())
	must(t, err)
	pushed := make(chan error, 1)
	go func() {
		_, err := one.remote.Push(t.Context(), one.Store, "web")
		pushed <- err
	}()
	until(t, "the push uploads", func() bool { return b.waiting("packs") })
	close(b.roots)
	w.ended.Wait()
	must(t, w.err)
	close(b.packs)
	must(t, <-pushed)
}

// held holds up who lists roots, and who writes packs, until the channels are closed.
type held struct {
	bucket.Bucket
	roots, packs chan struct{}

	mu   sync.Mutex
	here map[string]bool
}

func (h *held) waiting(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.here[what]
}

func (h *held) hold(key, what string, until chan struct{}) {
	if !strings.HasPrefix(key, what) {
		return
	}
	h.mu.Lock()
	if h.here == nil {
		h.here = map[string]bool{}
	}
	h.here[what] = true
	h.mu.Unlock()
	<-until
}

func (h *held) List(ctx context.Context, prefix, after string) ([]bucket.Info, bool, error) {
	h.hold(prefix, "roots", h.roots)
	return h.Bucket.List(ctx, prefix, after)
}

func (h *held) Put(ctx context.Context, key string, c io.ReaderAt, size int64, cond bucket.Cond) (string, error) {
	h.hold(key, "packs", h.packs)
	return h.Bucket.Put(ctx, key, c, size, cond)
}

// pushesOf is remembered for several goroutines.
type pushesOf struct {
	mu    sync.Mutex
	noted remembered
}

func (p *pushesOf) Begun(name, nonce string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noted.Begun(name, nonce)
}

func (p *pushesOf) Left(name string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noted.Left(name)
}

func (p *pushesOf) Ended(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted.Ended(name)
}
