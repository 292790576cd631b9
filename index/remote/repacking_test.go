package remote_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/remote"
	bkt "github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/repack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// following is a source of payload that looks where something has been moved when it is gone.
type following struct {
	*remote.Store
	m *machine
}

func (f following) ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error {
	err := f.Store.ReadRange(ctx, name, p, off)
	if index.ClassOf(err) == index.NotFound {
		if ferr := f.Follow(ctx, f.m.Store); ferr != nil {
			return ferr
		}
	}
	return err
}

// follow opens the machine's store anew with an empty cache, so that it looks where something has been moved.
func (m *machine) follow(t *testing.T) {
	t.Helper()
	must(t, m.Close())
	cache, err := nodecache.Open(nodecache.Options{Dir: filepath.Join(m.dir, "cache-2"), Limit: 1 << 30,
		Storage: storage.Disk{}, Source: following{m.remote, m}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	m.Store, err = index.Open(t.Context(), m.dir, index.Options{Distant: cache, FreeFloor: 1})
	must(t, err)
}

func (m *machine) repack(t *testing.T) repack.Report {
	t.Helper()
	res, err := m.remote.Repack(t.Context(), remote.RepackOptions{Holds: m.Holds, Most: 1 << 30})
	must(t, err)
	return res
}

func (m *machine) push(t *testing.T, name string) remote.Pushed {
	t.Helper()
	must(t, m.remote.Learn(t.Context(), m.Store))
	p, err := m.remote.Push(t.Context(), m.Store, name)
	must(t, err)
	return p
}

func packBytes(b *memory.Bucket) (n int) {
	for _, k := range b.Keys() {
		if strings.HasPrefix(k, "packs/") {
			n += len(b.Content(k))
		}
	}
	return n
}

// shared gives the files of three checkpoints: a has eight parts, b and c have some of them and something of their
// own.
func shared(part int) (a, b, c map[string][]byte) {
	all := noise(1, 8*part)
	a = map[string][]byte{"pages-1.img": all, "only": noise(2, 100_000)}
	b = map[string][]byte{"pages-1.img": all[:part], "own": noise(3, 300_000)}
	some := append(bytes.Clone(all[:part]), all[5*part:6*part]...)
	c = map[string][]byte{"pages-1.img": some, "own": noise(4, 200_000)}
	return a, b, c
}

// TestRepack removes the checkpoint that a pack was written for, of which two others need a part. The part is copied,
// the pack goes once readers have had their time, and all machines read both checkpoints: one that pulls them then,
// one that has pulled them before and has nothing of them, one that has written them.
func TestRepack(t *testing.T) {
	plain := func(t *testing.T, b *memory.Bucket) *machine { return newMachine(t, b) }
	nonces := &pairs{seen: map[string][32]byte{}}
	secret := func(t *testing.T, b *memory.Bucket) *machine {
		return secretMachine(t, b, cipher.Hooks{Used: nonces.used})
	}
	kinds := map[string]func(*testing.T, *memory.Bucket) *machine{"plain": plain, "encrypted": secret}
	for name, machineOn := range kinds {
		t.Run(name, func(t *testing.T) {
			bucket := memory.New(memory.Hooks{})
			one, two, early := machineOn(t, bucket), machineOn(t, bucket), machineOn(t, bucket)
			a, b, c := shared(1 << 20)
			one.dump(t, "a", a)
			one.push(t, "a")
			one.dump(t, "b", b)
			one.push(t, "b")
			two.dump(t, "c", c)
			if p := two.push(t, "c"); p.Known == 0 {
				t.Fatalf("c shares nothing: %+v", p)
			}
			for _, n := range []string{"b", "c"} {
				_, err := early.remote.Pull(t.Context(), early.Store, n, n)
				must(t, err)
			}
			if got := one.repack(t); got.Packs != 0 || got.Written != 0 || got.Left != 0 {
				t.Errorf("all is in use, and %+v", got)
			}
			must(t, one.remote.Remove(t.Context(), "a"))
			o := remote.RepackOptions{Holds: one.Holds, Most: 1 << 30, DryRun: true}
			dry, err := one.remote.Repack(t.Context(), o)
			if before := packBytes(bucket); err != nil || dry.Packs != 1 || dry.Written != 0 || dry.Bytes < 8<<20 {
				t.Errorf("a dry run of %d bytes tells %+v, %v", before, dry, err)
			}
			got := one.repack(t)
			if got.Packs != 1 || got.Checkpoints != 2 || got.Bytes < 8<<20 || got.Copied > 3<<20 ||
				got.Copied < 3<<19 || got.Read < got.Copied/2 || got.Read > 4<<20 || got.Written < got.Copied ||
				got.Left != 0 {
				t.Errorf("repacked %+v", got)
			}
			must(t, early.holds("b", b)) // by the older list
			if again := one.repack(t); again.Packs != 0 || again.Written != 0 {
				t.Errorf("repacked again: %+v", again)
			}
			before := packBytes(bucket)
			one.collect(t)
			if after := packBytes(bucket); after > before-8<<20 || after > 4<<20 {
				t.Errorf("%d bytes of packs, and %d before they were collected", after, before)
			}
			late := machineOn(t, bucket)
			for _, x := range []struct {
				name  string
				files map[string][]byte
			}{{"b", b}, {"c", c}} {
				_, err := late.remote.Pull(t.Context(), late.Store, x.name, x.name)
				must(t, err)
				must(t, late.holds(x.name, x.files))
				if name == "plain" {
					early.follow(t)
					must(t, early.holds(x.name, x.files))
					early.reopen(t)
					must(t, early.holds(x.name, x.files))
				}
			}
			v, err := late.remote.Verify(t.Context(), remote.VerifyOptions{Holds: late.Holds})
			if err != nil || len(v.Problems) > 0 || v.Checkpoints != 2 {
				t.Errorf("verify: %+v, %v", v, err)
			}
			// Who knows where the chunks lay sends none of what the bucket has.
			one.dump(t, "d", c)
			if p := one.push(t, "d"); p.Bytes > 100_000 {
				t.Errorf("the bucket has it, and %+v was sent", p)
			}
			for _, k := range bucket.Keys() {
				if strings.HasPrefix(k, "tombs/") || strings.HasPrefix(k, "removed/") || strings.Contains(k, "~") {
					t.Errorf("left: %s", k)
				}
			}
		})
	}
	if nonces.twice > 0 || len(nonces.seen) == 0 {
		t.Errorf("of %d keys and nonces %d encrypt more than one plaintext", len(nonces.seen), nonces.twice)
	}
}

// meddling is what a test does before requests of a bucket.
type meddling struct {
	f atomic.Pointer[func(memory.Call) error]
}

// set says what is done from now on, nil for nothing. Where it gives an error the request fails.
func (m *meddling) set(f func(memory.Call) error) {
	if f == nil {
		m.f.Store(nil)
	} else {
		m.f.Store(&f)
	}
}

func (m *meddling) call(c memory.Call) (happens bool, err error) {
	if f := m.f.Load(); f != nil {
		err = (*f)(c)
	}
	return err == nil, err
}

// TestFollowLooksAgain: a node that could not see where a checkpoint's chunks were moved looks again. The first time
// the bucket does not give it the list, or it has not got the checkpoint yet, which it is pulling by the older list.
func TestFollowLooksAgain(t *testing.T) {
	for _, pulling := range []bool{false, true} {
		t.Run(fmt.Sprintf("pulling %t", pulling), func(t *testing.T) {
			var before meddling
			bucket := memory.New(memory.Hooks{Before: before.call})
			one, early := newMachine(t, bucket), newMachine(t, bucket)
			a, b, _ := shared(1 << 20)
			one.dump(t, "a", a)
			one.push(t, "a")
			one.dump(t, "b", b)
			one.push(t, "b")
			must(t, one.remote.Remove(t.Context(), "a"))
			root, err := one.remote.Find(t.Context(), "b")
			must(t, err)
			list := "packs/" + root.List
			moved := func() {
				if got := one.repack(t); got.Checkpoints != 1 {
					t.Errorf("repacked %+v", got)
				}
			}
			if !pulling {
				_, err := early.remote.Pull(t.Context(), early.Store, "b", "b")
				must(t, err)
				moved()
				root, err = one.remote.Find(t.Context(), "b")
				must(t, err)
				list = "packs/" + root.List
				before.set(func(c memory.Call) error {
					if c.Op == "get" && c.Key == list {
						return &bkt.Error{Class: bkt.Transient, Err: errors.New("no answer")}
					}
					return nil
				})
				if err := early.remote.Follow(t.Context(), early.Store); index.ClassOf(err) != index.Unreachable {
					t.Errorf("the list does not come, and Follow says: %v", err)
				}
				before.set(nil)
			} else {
				before.set(func(c memory.Call) error {
					if c.Op == "get" && c.Key == list {
						before.set(nil)
						moved()
						must(t, early.remote.Follow(t.Context(), early.Store))
					}
					return nil
				})
				_, err := early.remote.Pull(t.Context(), early.Store, "b", "b")
				must(t, err)
			}
			one.collect(t)
			early.follow(t)
			must(t, early.holds("b", b))
		})
	}
}

// TestFollowPushedAnew: a checkpoint was removed from the bucket, and is pushed there anew. A node that had pulled it
// before finds it.
func TestFollowPushedAnew(t *testing.T) {
	bucket := memory.New(memory.Hooks{})
	one, early := newMachine(t, bucket), newMachine(t, bucket)
	files := map[string][]byte{"pages-1.img": noise(1, 2<<20)}
	one.dump(t, "web", files)
	one.push(t, "web")
	_, err := early.remote.Pull(t.Context(), early.Store, "web", "web")
	must(t, err)
	must(t, one.remote.Remove(t.Context(), "web"))
	one.collect(t)
	early.follow(t)
	if err := early.holds("web", files); index.ClassOf(err) != index.Unreachable {
		t.Errorf("it was removed, and is read: %v", err)
	}
	one.push(t, "web")
	early.follow(t)
	must(t, early.holds("web", files))
}

// TestRepackStops ends a repacking at each of its requests in turn, with and without the request having happened. What
// stands can be read, and in the end nothing is left that nobody needs.
func TestRepackStops(t *testing.T) {
	const part = 512 << 10
	before := memory.New(memory.Hooks{})
	one := newMachine(t, before)
	a, b, c := shared(part)
	files := map[string]map[string][]byte{"a": a, "b": b, "c": c}
	for _, name := range []string{"a", "b", "c"} {
		one.dump(t, name, files[name])
		one.push(t, name)
	}
	must(t, one.remote.Remove(t.Context(), "a"))
	for at := 1; ; at++ {
		var mu sync.Mutex
		left, stopped := 0, false
		bucket := memory.New(memory.Hooks{Before: func(memory.Call) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			left--
			switch {
			case left == 0: // the last one
				return at%2 == 0, context.Canceled
			case left < 0 && stopped:
				return false, context.Canceled
			}
			return true, nil
		}})
		for _, k := range before.Keys() {
			must(t, bucket.Apply(memory.Call{Op: "put", Key: k, Content: before.Content(k)}))
		}
		s, err := remote.Open(t.Context(), bucket, hasty)
		must(t, err)
		sound := func() {
			t.Helper()
			v, err := s.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
			if err != nil || len(v.Problems) > 0 || v.Checkpoints != 2 {
				t.Errorf("stopped at request %d: %+v, %v", at, v, err)
			}
		}
		repacking := func(most int64) error {
			_, err := s.Repack(t.Context(), remote.RepackOptions{Holds: one.Holds, Most: most})
			return err
		}
		left, stopped = at, true
		err = repacking(1 << 30)
		stopped = false
		if left > 0 {
			if must(t, err); at < 20 {
				t.Fatalf("a repacking of %d requests", at)
			}
			return
		}
		sound()
		m := &machine{remote: s}
		m.collect(t) // abandons the draft
		sound()
		must(t, repacking(300_000)) // it may copy nothing, and puts right what was left
		if p := unneeded(t, s, bucket); p != "" {
			t.Errorf("stopped at request %d: a root lists pack %s, and its list does not", at, p)
		}
		for range 2 {
			must(t, repacking(1<<30))
		}
		m.collect(t)
		sound()
		// What b and c share may have been copied for each.
		if n := packBytes(bucket); n > 500_000+5*part {
			t.Errorf("stopped at request %d: %d bytes of packs are left", at, n)
		}
		for _, k := range bucket.Keys() {
			if strings.HasPrefix(k, "removed/") || strings.HasPrefix(k, "tombs/") {
				t.Errorf("stopped at request %d: %s is left", at, k)
			}
		}
		if at%10 == 0 {
			two := newMachine(t, bucket)
			for _, name := range []string{"b", "c"} {
				_, err := s.Pull(t.Context(), two.Store, name, name)
				must(t, err)
				must(t, two.holds(name, files[name]))
			}
		}
	}
}

// unneeded gives a pack that the root of a checkpoint lists, and its list object does not.
func unneeded(t *testing.T, s *remote.Store, b *memory.Bucket) (pack string) {
	t.Helper()
	id, err := hex.DecodeString(s.Config().ID)
	must(t, err)
	for r, err := range catalog.New(b, catalog.Options{}).All(t.Context()) {
		must(t, err)
		if r.State != catalog.Sealed {
			continue
		}
		last := len(r.Packs) - 1
		var listed []string
		list := object.Source{Reader: bytes.NewReader(b.Content("packs/" + r.Packs[last].ID))}
		must(t, object.Decode(list, [16]byte(id), object.Visitor{
			Pack: func(_ uint32, p object.PackRef) error { listed = append(listed, p.Name.String()); return nil }}))
		for _, p := range r.Packs[:last] {
			if !slices.Contains(listed, p.ID) {
				return p.ID
			}
		}
	}
	return ""
}

// TestRepackBounds: what a run may read and write is enough for one of two packs, and the next run does the other.
// With nothing allowed it does nothing. What was found to be in use is not looked at again.
func TestRepackBounds(t *testing.T) {
	bucket := memory.New(memory.Hooks{})
	one := newMachine(t, bucket)
	for i, n := range []string{"x", "y"} {
		all := noise(uint64(10+i), 6<<20)
		one.dump(t, n, map[string][]byte{"f": all})
		one.push(t, n)
		one.dump(t, n+"-part", map[string][]byte{"f": all[:2<<20]})
		one.push(t, n+"-part")
		must(t, one.remote.Remove(t.Context(), n))
	}
	full := map[string]uint64{}
	run := func(most int64) repack.Report {
		t.Helper()
		res, err := one.remote.Repack(t.Context(), remote.RepackOptions{Holds: one.Holds, Most: most, Full: full})
		must(t, err)
		return res
	}
	if got := run(0); got != (repack.Report{}) {
		t.Errorf("nothing is allowed, and %+v", got)
	}
	for range 2 {
		if got := run(6 << 20); got.Packs != 1 || got.Read+got.Written > 6<<20 {
			t.Errorf("repacked %+v", got)
		}
	}
	if got := run(6 << 20); got.Packs != 0 || len(full) != 2 {
		t.Errorf("repacked %+v, and %d packs are in use", got, len(full))
	}
	if got := run(6 << 20); got.Read != 0 {
		t.Errorf("looked again: %+v", got)
	}
}

// TestRepackOfDamage: a damaged chunk is not copied; its pack stays as it is.
func TestRepackOfDamage(t *testing.T) {
	bucket := memory.New(memory.Hooks{})
	one := newMachine(t, bucket)
	a, b, _ := shared(1 << 20)
	one.dump(t, "a", a)
	one.push(t, "a")
	one.dump(t, "b", b)
	one.push(t, "b")
	var largest string
	for _, k := range bucket.Keys() {
		if strings.HasPrefix(k, "packs/") && len(bucket.Content(k)) > len(bucket.Content(largest)) {
			largest = k
		}
	}
	content := bytes.Clone(bucket.Content(largest))
	for at := range slices.Chunk(content[:len(content)-1<<20], 4096) {
		at[100] ^= 1
	}
	must(t, bucket.Apply(memory.Call{Op: "put", Key: largest, Content: content}))
	must(t, one.remote.Remove(t.Context(), "a"))
	if got := one.repack(t); got.Packs != 0 || got.Checkpoints != 0 || got.Left != 1 {
		t.Errorf("repacked %+v", got)
	}
	one.collect(t)
	if !slices.Contains(bucket.Keys(), largest) {
		t.Error("the pack has gone")
	}
}

// TestRepackBesideDamage: a pack or a list that is damaged, cut short or missing stays as it is, and what is sound is
// repacked all the same. For one that is cut short a server may refuse the range.
func TestRepackBesideDamage(t *testing.T) {
	damages := map[string]func([]byte) []byte{
		"changed":   func(b []byte) []byte { b[300_000%len(b)] ^= 1; return b },
		"cut short": func(b []byte) []byte { return b[:len(b)/3] },
		"refused":   func(b []byte) []byte { return b[:len(b)/3] },
		"missing":   nil,
	}
	for _, what := range []string{"pack", "list"} {
		for how, damage := range damages {
			t.Run(what+" "+how, func(t *testing.T) {
				refused := ""
				bucket := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
					if c.Op == "get" && c.Key == refused {
						return false, bkt.Fail(bkt.Corrupt, "get", c.Key, "no such range")
					}
					return true, nil
				}})
				one := newMachine(t, bucket)
				files, packs, lists := map[string]map[string][]byte{}, map[string]string{}, map[string]string{}
				for i, n := range []string{"x", "y"} {
					all := noise(uint64(10+i), 3<<20)
					one.dump(t, n, map[string][]byte{"f": all})
					one.push(t, n)
					e, err := one.remote.Find(t.Context(), n)
					must(t, err)
					packs[n] = "packs/" + strings.TrimSuffix(e.List, "-1") + "-0"
					files[n] = map[string][]byte{"f": all[:1<<20]}
					one.dump(t, n+"-part", files[n])
					one.push(t, n+"-part")
					e, err = one.remote.Find(t.Context(), n+"-part")
					must(t, err)
					lists[n] = "packs/" + e.List
					must(t, one.remote.Remove(t.Context(), n))
				}
				key := packs["x"]
				if what == "list" {
					key = lists["x"]
				}
				if damage == nil {
					must(t, bucket.Apply(memory.Call{Op: "delete", Key: key}))
				} else {
					content := damage(bytes.Clone(bucket.Content(key)))
					must(t, bucket.Apply(memory.Call{Op: "put", Key: key, Content: content}))
				}
				if how == "refused" {
					refused = key
				}
				if got := one.repack(t); got.Packs != 1 || got.Checkpoints != 1 {
					t.Errorf("repacked %+v", got)
				}
				one.collect(t)
				keys := bucket.Keys()
				if damage != nil && !slices.Contains(keys, key) || slices.Contains(keys, packs["y"]) ||
					!slices.Contains(keys, packs["x"]) && key != packs["x"] {
					t.Errorf("%s is damaged, and left are %v", key, keys)
				}
				late := newMachine(t, bucket)
				_, err := late.remote.Pull(t.Context(), late.Store, "y-part", "y-part")
				must(t, err)
				must(t, late.holds("y-part", files["y"]))
				v, err := late.remote.Verify(t.Context(), remote.VerifyOptions{Holds: late.Holds})
				if err != nil || len(v.Problems) == 0 || v.Problems[0].Checkpoint != "x-part" {
					t.Errorf("verify: %+v, %v", v, err)
				}
			})
		}
	}
}
