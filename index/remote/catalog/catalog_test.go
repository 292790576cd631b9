package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

func newCatalog() (*Catalog, *memory.Bucket) {
	mem := memory.New(memory.Hooks{})
	return New(mem, Options{ConditionalDelete: true}), mem
}

// dumped makes a checkpoint of one pack.
func dumped(t *testing.T, c *Catalog, name, text string) Pack {
	t.Helper()
	d := begun(t, c, name)
	p := added(t, d, text)
	ok(t, d.Seal(t.Context(), []Pack{p}, []byte("meta of "+name)))
	return p
}

func begun(t *testing.T, c *Catalog, name string) *Draft {
	t.Helper()
	d, err := c.Begin(t.Context(), name)
	ok(t, err)
	return d
}

func added(t *testing.T, d *Draft, text string) Pack {
	t.Helper()
	p, err := d.Add(t.Context(), strings.NewReader(text), int64(len(text)))
	ok(t, err)
	return p
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fails(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func collected(t *testing.T, g *Collector, want Report) {
	t.Helper()
	got, err := g.Collect(t.Context())
	if err != nil || got != want {
		t.Fatalf("collected %+v, %v; want %+v", got, err, want)
	}
}

func text(t *testing.T, k *Checkpoint, p Pack) (string, error) {
	t.Helper()
	b := make([]byte, 100)
	n, err := k.ReadAt(t.Context(), p, b, 0)
	return string(b[:n]), err
}

func TestNames(t *testing.T) {
	c, _ := newCatalog()
	d := begun(t, c, "a")
	_, err := c.Find(t.Context(), "a")
	fails(t, err, ErrNotFound)
	_, err = c.Begin(t.Context(), "a")
	fails(t, err, ErrInUse)
	fails(t, c.Abandon(t.Context(), "a", one), ErrNotFound)
	ok(t, d.Abort(t.Context()))
	fails(t, d.Touch(t.Context()), ErrInvalid)

	p := dumped(t, c, "a", "hello")
	_, err = c.Begin(t.Context(), "a")
	fails(t, err, ErrExists)
	k, err := c.Find(t.Context(), "a")
	ok(t, err)
	if got, err := text(t, k, p); got != "hello" || err != nil || string(k.Meta) != "meta of a" {
		t.Errorf("read %q, %v; meta %q", got, err, k.Meta)
	}
	ok(t, c.Remove(t.Context(), "a"))
	fails(t, c.Remove(t.Context(), "a"), ErrNotFound)
	lost := begun(t, c, "a")
	ok(t, c.Abandon(t.Context(), "a", lost.Nonce()))
	fails(t, lost.Seal(t.Context(), nil, nil), ErrTaken)
	_, err = c.Begin(t.Context(), "../a")
	fails(t, err, ErrInvalid)
	_, err = c.Find(t.Context(), "")
	fails(t, err, ErrInvalid)

	dumped(t, c, "b", "x")
	var all []string
	for r, err := range c.All(t.Context()) {
		ok(t, err)
		all = append(all, r.Name+" "+string(r.State))
	}
	if want := []string{"a void", "b sealed"}; !slices.Equal(all, want) {
		t.Errorf("roots %q, want %q", all, want)
	}
}

func TestSealTakesOnlyWhatIsSafe(t *testing.T) {
	c, mem := newCatalog()
	good, tombed := dumped(t, c, "a", "good"), dumped(t, c, "b", "tombed")
	short := Pack{good.ID, good.Size - 1}
	missing := Pack{good.draft() + "-9", 4}
	ok(t, mem.Apply(memory.Call{Op: "put", Key: tombKey(tombed.ID, one)}))
	d := begun(t, c, "c")
	fails(t, d.Seal(t.Context(), []Pack{good}, nil), ErrInvalid)
	lost, err := d.Claim(t.Context(), []Pack{good, tombed, missing})
	ok(t, err)
	if want := []Pack{tombed, missing}; !slices.Equal(lost, want) {
		t.Errorf("lost %v, want %v", lost, want)
	}
	for _, p := range []Pack{tombed, missing, short} {
		fails(t, d.Seal(t.Context(), []Pack{p}, nil), ErrInvalid)
	}
	ok(t, d.Seal(t.Context(), []Pack{added(t, d, "tombed"), good}, nil))
	fails(t, d.Seal(t.Context(), nil, nil), ErrInvalid)
}

func TestCollect(t *testing.T) {
	c, mem := newCatalog()
	kept := dumped(t, c, "kept", "kept")
	removed := dumped(t, c, "removed", "removed")
	k, err := c.Find(t.Context(), "removed")
	ok(t, err)
	draft := begun(t, c, "draft")
	added(t, draft, "draft")
	ok(t, c.Remove(t.Context(), "removed"))

	var now time.Duration
	g := c.Collector(Patience{Pending: 10, Removed: 20, Now: func() time.Duration { return now }})
	collected(t, g, Report{})
	if got, err := g.Garbage(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("garbage %v, %v", got, err)
	}
	if got, err := text(t, k, removed); got != "removed" || err != nil {
		t.Errorf("a reader has its time: %q, %v", got, err)
	}
	now = 9
	ok(t, draft.Touch(t.Context()))
	collected(t, g, Report{})
	now = 18
	collected(t, g, Report{})
	now = 19
	collected(t, g, Report{Packs: 1, Bytes: 5, Abandoned: 1})
	fails(t, draft.Seal(t.Context(), nil, nil), ErrTaken)
	now = 20
	collected(t, g, Report{Packs: 1, Bytes: 7})
	_, err = text(t, k, removed)
	fails(t, err, ErrRemoved)
	if want := []string{"packs/" + kept.ID, "roots/kept"}; !slices.Equal(mem.Keys(), want) {
		t.Errorf("left %v, want %v", mem.Keys(), want)
	}
}

// TestPatienceOutlivesProcesses: what one collector has watched counts for the next.
func TestPatienceOutlivesProcesses(t *testing.T) {
	c, mem := newCatalog()
	dumped(t, c, "a", "a")
	ok(t, c.Remove(t.Context(), "a"))
	begun(t, c, "b")
	watched := map[string]Sighting{}
	for i, want := range []Report{{}, {}, {Packs: 1, Bytes: 1, Abandoned: 1}, {}} {
		g := c.Collector(Patience{Pending: time.Hour, Removed: time.Hour, Now: func() time.Duration { return 0 }})
		g.Remember(watched, 31*time.Minute)
		collected(t, g, want)
		if watched = g.Watched(); i == 0 && len(watched) != 2 {
			t.Errorf("watched %v", watched)
		}
	}
	if left := mem.Keys(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestUnreadableRoot: who does not know what a root needs deletes nothing.
func TestUnreadableRoot(t *testing.T) {
	for _, content := range []string{"", "gpucr-fs root 2\n", string(sample().encode())} {
		c, mem := newCatalog()
		dumped(t, c, "a", "a")
		ok(t, c.Remove(t.Context(), "a"))
		ok(t, mem.Apply(memory.Call{Op: "put", Key: "roots/b", Content: []byte(content)}))
		before := mem.Keys()
		_, err := c.Collector(Patience{}).Collect(t.Context())
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "roots/b") {
			t.Errorf("root %q: %v", content, err)
		}
		for _, key := range before {
			if strings.HasPrefix(key, packDir) && mem.Content(key) == nil {
				t.Errorf("root %q: %s was deleted", content, key)
			}
		}
	}
}

// TestForeignTombstones: one over a pack in use stays, unless it is said when its run has certainly ended.
func TestForeignTombstones(t *testing.T) {
	c, mem := newCatalog()
	p := dumped(t, c, "a", "a")
	tomb := tombKey(p.ID, one)
	ok(t, mem.Apply(memory.Call{Op: "put", Key: tomb}))
	ok(t, mem.Apply(memory.Call{Op: "put", Key: tombKey(one+"-3", one)}))
	var now time.Duration
	clock := func() time.Duration { return now }
	never, late := c.Collector(Patience{Now: clock}), c.Collector(Patience{Foreign: 5, Now: clock})
	for now = range 5 {
		collected(t, never, Report{})
		collected(t, late, Report{})
	}
	if want := []string{PackKey(p.ID), "roots/a", tomb}; !slices.Equal(mem.Keys(), want) {
		t.Errorf("left %v, want %v", mem.Keys(), want)
	}
	now = 5
	collected(t, late, Report{})
	if slices.Contains(mem.Keys(), tomb) {
		t.Error("the tombstone is still there")
	}
}

// TestFailuresAreCounted: a collector goes on with what it can do, and its next run does the rest.
func TestFailuresAreCounted(t *testing.T) {
	var stuck string
	mem := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		if c.Op == "delete" && c.Key == stuck {
			return false, bucket.Fail(bucket.Denied, c.Op, c.Key, "not now")
		}
		return true, nil
	}})
	c := New(mem, Options{ConditionalDelete: true})
	p, q := dumped(t, c, "a", "a"), dumped(t, c, "b", "b")
	ok(t, c.Remove(t.Context(), "a"))
	ok(t, c.Remove(t.Context(), "b"))
	for _, key := range mem.Keys() {
		if strings.HasPrefix(key, removedDir) {
			ok(t, mem.Delete(t.Context(), key, bucket.Cond{}))
		}
	}
	stuck = PackKey(p.ID)
	g := c.Collector(Patience{})
	garbage, err := g.Garbage(t.Context())
	if len(garbage) != 2 || err != nil {
		t.Errorf("garbage %v, %v", garbage, err)
	}
	got, err := g.Collect(t.Context())
	if got != (Report{Packs: 1, Bytes: 1, Failed: 1}) || bucket.ClassOf(err) != bucket.Denied {
		t.Fatalf("collected %+v, %v", got, err)
	}
	d := begun(t, c, "c")
	if lost, err := d.Claim(t.Context(), []Pack{p, q}); len(lost) != 2 || err != nil {
		t.Errorf("lost %v, %v: neither may be used", lost, err)
	}
	ok(t, d.Abort(t.Context()))
	stuck = ""
	collected(t, g, Report{Packs: 1, Bytes: 1})
	collected(t, g, Report{})
	if left := mem.Keys(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestDraftWithoutAnswer: a draft that does not know what became of its root does not go on with it.
func TestDraftWithoutAnswer(t *testing.T) {
	down := false
	mem := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		if down {
			return c.Op == "put", bucket.Fail(bucket.Transient, c.Op, c.Key, "no answer")
		}
		return true, nil
	}})
	c := New(mem, Options{Attempts: 2, Wait: func(context.Context, int) error { return nil }})
	d := begun(t, c, "a")
	down = true
	for range 2 {
		if err := d.Seal(t.Context(), nil, nil); bucket.ClassOf(err) != bucket.Transient {
			t.Errorf("seal: %v", err)
		}
		down = false
	}
	k, err := c.Find(t.Context(), "a")
	if err != nil || k.Nonce != d.Nonce() {
		t.Errorf("what was sealed without an answer is found: %+v, %v", k, err)
	}
}

// TestAtOnce lets machines write, remove, collect and read without a schedule.
func TestAtOnce(t *testing.T) {
	c, mem := newCatalog()
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 50 {
				name := fmt.Sprint("name", (i+n)%3)
				if d, err := c.Begin(ctx, name); err == nil {
					var beat sync.WaitGroup
					beat.Go(func() {
						if err := d.Touch(ctx); err != nil {
							t.Errorf("touch %s: %v", name, err)
						}
					})
					p, err := d.Add(ctx, strings.NewReader(name), int64(len(name)))
					if beat.Wait(); err == nil {
						err = d.Seal(ctx, []Pack{p}, nil)
					}
					if err != nil {
						t.Errorf("dump %s: %v", name, err)
					}
				}
				k, err := c.Find(ctx, name)
				if err != nil {
					continue
				}
				if got, err := text(t, k, k.Packs[0]); got != name && !errors.Is(err, ErrRemoved) {
					t.Errorf("%s has %q, %v", name, got, err)
				}
				c.Remove(ctx, name)
			}
		})
	}
	patient := Patience{Pending: time.Hour}
	for range 2 {
		wg.Go(func() {
			g := c.Collector(patient)
			for range 50 {
				if _, err := g.Collect(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	g := c.Collector(Patience{})
	for range 2 {
		_, err := g.Collect(ctx)
		ok(t, err)
	}
	for _, key := range mem.Keys() {
		if strings.HasPrefix(key, tombDir) || strings.HasPrefix(key, removedDir) {
			t.Errorf("left %s", key)
		}
	}
}

// TestLateBegin: the first request of Begin has no answer, and the second one succeeds. The draft is taken for
// abandoned, its pack and its root are deleted, and now the first request happens. The draft cannot be sealed all the
// same.
func TestLateBegin(t *testing.T) {
	var late []memory.Call
	mem := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		if c.Op == "put" && c.Key == "roots/a" && len(late) == 0 {
			late = append(late, c)
			return false, &bucket.Error{Class: bucket.Transient, Err: errors.New("no answer")}
		}
		return true, nil
	}})
	c := New(mem, Options{ConditionalDelete: true, Wait: func(context.Context, int) error { return nil }})
	d := begun(t, c, "a")
	p := added(t, d, "content")
	g := c.Collector(Patience{})
	for range 2 {
		_, err := g.Collect(t.Context())
		ok(t, err)
	}
	if left := mem.Keys(); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
	ok(t, mem.Apply(late[0]))
	fails(t, d.Seal(t.Context(), []Pack{p}, nil), ErrTaken)
	_, err := c.Find(t.Context(), "a")
	fails(t, err, ErrNotFound)
}
