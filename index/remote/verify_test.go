package remote_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// TestVerify finds every kind of damage in a bucket, and none in a sound one.
func TestVerify(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	shared := noise(1, 5<<20)
	one.dump(t, "a", map[string][]byte{"pages": shared, "text": bytes.Repeat([]byte("text "), 100_000)})
	one.dump(t, "b", map[string][]byte{"pages": append(bytes.Clone(shared), noise(2, 1<<20)...)})
	for _, name := range []string{"a", "b"} {
		_, err := one.remote.Push(t.Context(), one.Store, name)
		must(t, err)
	}
	verify := func(o remote.VerifyOptions) remote.Verified {
		t.Helper()
		o.Holds = one.Holds
		res, err := one.remote.Verify(t.Context(), o)
		must(t, err)
		return res
	}
	all := verify(remote.VerifyOptions{})
	if len(all.Problems) > 0 || all.Checkpoints != 2 || all.Bytes < 6<<20 || all.Bytes > 7<<20 {
		t.Errorf("a sound one: %+v", all)
	}
	if some := verify(remote.VerifyOptions{Subset: 1e-9}); some.Bytes != 0 || some.Chunks != all.Chunks {
		t.Errorf("next to nothing: %+v", some)
	}
	packs := map[string][]byte{} // by their keys; the lists are small
	for _, k := range b.Keys() {
		if content := b.Content(k); strings.HasPrefix(k, "packs/") && len(content) > 1<<20 {
			packs[k] = content
		}
	}
	if len(packs) != 2 {
		t.Fatalf("%d packs", len(packs))
	}
	for key, content := range packs {
		put := func(content []byte) {
			t.Helper()
			must(t, b.Apply(memory.Call{Op: "put", Key: key, Content: content}))
		}
		id := strings.TrimPrefix(key, "packs/")
		flipped := bytes.Clone(content)
		for _, at := range []int{0, len(content) / 2, len(content) - 100, len(content) - 1} {
			flipped[at] ^= 0x40
			put(flipped)
			res := verify(remote.VerifyOptions{})
			if len(res.Problems) == 0 || res.Problems[0].Pack != id {
				t.Errorf("byte %d of %d changed: %+v", at, len(content), res)
			}
			flipped[at] ^= 0x40
		}
		put(content[:len(content)-1])
		if res := verify(remote.VerifyOptions{}); len(res.Problems) == 0 {
			t.Error("cut short, and sound")
		}
		must(t, b.Apply(memory.Call{Op: "delete", Key: key}))
		if res := verify(remote.VerifyOptions{Names: []string{"b"}, Subset: 1e-9}); len(res.Problems) == 0 {
			t.Error("gone, and sound")
		}
		put(content)
	}
	if res := verify(remote.VerifyOptions{}); len(res.Problems) > 0 {
		t.Errorf("put right: %+v", res)
	}
}

// TestVerifyOfWhatMoves: a checkpoint is given other packs while it is verified, and is read anew. Damage that was
// found before that is told, once.
func TestVerifyOfWhatMoves(t *testing.T) {
	var before meddling
	b := memory.New(memory.Hooks{Before: before.call})
	one := newMachine(t, b)
	kept, most := noise(1, 2<<20), noise(2, 8<<20)
	one.dump(t, "kept", map[string][]byte{"1": kept})
	one.push(t, "kept")
	one.dump(t, "most", map[string][]byte{"1": most})
	one.push(t, "most")
	one.dump(t, "both", map[string][]byte{"1": kept, "2": most[:2<<20]})
	one.push(t, "both")
	must(t, one.remote.Remove(t.Context(), "most"))
	damaged, moved := "", ""
	for _, k := range b.Keys() {
		switch n := len(b.Content(k)); {
		case strings.HasPrefix(k, "packs/") && n > 8<<20:
			moved = k
		case strings.HasPrefix(k, "packs/") && n > 2<<20:
			damaged = k
		}
	}
	content := bytes.Clone(b.Content(damaged))
	content[len(content)/2] ^= 1
	must(t, b.Apply(memory.Call{Op: "put", Key: damaged, Content: content}))
	moves := 0
	before.set(func(c memory.Call) error {
		if c.Op == "get" && c.Key == moved {
			before.set(nil)
			moves = one.repack(t).Checkpoints
			one.collect(t)
		}
		return nil
	})
	v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
	must(t, err)
	if moves != 1 {
		t.Fatalf("%d checkpoints were given other packs", moves)
	}
	if len(v.Problems) != 1 || v.Problems[0].Pack != strings.TrimPrefix(damaged, "packs/") || v.Checkpoints != 2 {
		t.Errorf("it tells %+v", v)
	}
}

// A pack rots at its length: once a verification has seen that, a checkpoint with the same content brings it anew, also
// one that was removed and is taken there again, as the hint says.
func TestRottenPackIsNotUsedAgain(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	shared := noise(1, 3<<20)
	one.dump(t, "a", map[string][]byte{"pages": shared})
	one.push(t, "a")
	for _, k := range b.Keys() {
		if content := bytes.Clone(b.Content(k)); strings.HasPrefix(k, "packs/") && len(content) > 1<<20 {
			content[len(content)/2] ^= 1
			must(t, b.Apply(memory.Call{Op: "put", Key: k, Content: content}))
		}
	}
	verify := func(names ...string) int {
		t.Helper()
		v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Names: names, Holds: one.Holds})
		must(t, err)
		return len(v.Problems)
	}
	if verify() == 0 {
		t.Fatal("the damage is not seen: the test shows nothing")
	}
	one.dump(t, "b", map[string][]byte{"pages": shared})
	one.push(t, "b")
	if n := verify("b"); n > 0 {
		t.Errorf("%d problems of a new checkpoint", n)
	}
	must(t, one.remote.Remove(t.Context(), "a"))
	one.push(t, "a")
	if n := verify(); n > 0 {
		t.Errorf("%d problems after it was taken there again", n)
	}
}

// TestVerifyOfWhatIsKept: an object that keeps packs of a removed checkpoint is damaged. That no gc can go on is told,
// and that it helps to delete the object.
func TestVerifyOfWhatIsKept(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	for _, name := range []string{"a", "b"} {
		one.dump(t, name, map[string][]byte{"f": noise(1, 1<<20)})
		one.push(t, name)
	}
	must(t, one.remote.Remove(t.Context(), "a"))
	verify := func() []remote.Problem {
		t.Helper()
		v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
		must(t, err)
		return v.Problems
	}
	if p := verify(); len(p) > 0 {
		t.Errorf("a sound one: %+v", p)
	}
	kept := ""
	for _, k := range b.Keys() {
		if strings.HasPrefix(k, "removed/") {
			kept = k
		}
	}
	must(t, b.Apply(memory.Call{Op: "put", Key: kept}))
	if _, err := one.remote.Collector(catalog.Patience{}).Collect(t.Context()); err == nil {
		t.Error("it collects beside a damaged one")
	}
	p := verify()
	if len(p) != 1 || !strings.Contains(p[0].Text, kept) || !strings.Contains(p[0].Text, "delete the object") {
		t.Errorf("told: %+v", p)
	}
	must(t, b.Delete(t.Context(), kept, bucket.Cond{}))
	one.collect(t)
	if p := verify(); len(p) > 0 {
		t.Errorf("deleted: %+v", p)
	}
}

// flipping alters a byte of one long answer of a bucket.
type flipping struct {
	bucket.Bucket
	left atomic.Int32
}

func (f *flipping) Get(ctx context.Context, key string, p []byte, off int64) (int, bucket.Info, error) {
	n, info, err := f.Bucket.Get(ctx, key, p, off)
	if strings.HasPrefix(key, "packs/") && n > 1<<20 && f.left.Add(-1) == 0 {
		p[n/2] ^= 1
	}
	return n, info, err
}

// TestVerifyRetires: only a pack that is damaged where it lies is kept from new checkpoints, by one tombstone however
// often it is found.
func TestVerifyRetires(t *testing.T) {
	f := &flipping{Bucket: memory.New(memory.Hooks{})}
	b := f.Bucket.(*memory.Bucket)
	one := newMachine(t, f)
	one.dump(t, "a", map[string][]byte{"pages": noise(1, 3<<20)})
	one.push(t, "a")
	verify := func(what string, holds func(pack.Chunk, []byte) error, problems, want int) {
		t.Helper()
		v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: holds})
		tombs := 0
		for _, k := range b.Keys() {
			if strings.HasPrefix(k, "tombs/") {
				tombs++
			}
		}
		if len(v.Problems) != problems && err == nil || tombs != want {
			t.Errorf("%s: %+v, %v; %d tombstones", what, v.Problems, err, tombs)
		}
	}
	f.left.Store(1)
	verify("altered on the way", one.Holds, 0, 0)
	if f.left.Load() > 0 {
		t.Error("nothing was altered: the test shows nothing")
	}
	verify("no memory", func(pack.Chunk, []byte) error { return errors.New("no memory") }, 0, 0)
	verify("a later version", func(pack.Chunk, []byte) error { return pack.ErrVersion }, 11, 0)
	for _, k := range b.Keys() {
		if content := bytes.Clone(b.Content(k)); strings.HasPrefix(k, "packs/") && len(content) > 1<<20 {
			content[len(content)/2] ^= 1
			must(t, b.Apply(memory.Call{Op: "put", Key: k, Content: content}))
		}
	}
	for range 3 {
		verify("damaged", one.Holds, 1, 1)
	}
}
