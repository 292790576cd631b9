package uploads

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

func (n *node) dumpBytes(name string, data []byte) {
	n.t.Helper()
	d, err := n.store.Create(n.t.Context(), name, index.CreateOptions{})
	must(n.t, err)
	f, err := d.Create("pages-1.img", 0o600)
	must(n.t, err)
	_, err = f.WriteAt(data, 0)
	must(n.t, err)
	must(n.t, f.Close())
	_, err = d.Seal(n.t.Context())
	must(n.t, err)
	n.settle()
}

func (n *node) pull(name string) {
	n.t.Helper()
	_, err := n.remote.Pull(n.t.Context(), n.store, name, name)
	must(n.t, err)
}

// reads reads a part of a checkpoint's file, or all of it.
func (n *node) reads(when, name string, want []byte, share int) {
	n.t.Helper()
	c, err := n.store.Checkpoint(name)
	must(n.t, err)
	f, err := c.FS().Open("pages-1.img")
	must(n.t, err)
	defer f.Close()
	want = want[:len(want)/share]
	got := make([]byte, len(want))
	for at := 0; at < len(got); {
		k, err := f.Read(got[at:])
		if err != nil {
			n.t.Fatalf("%s: %s at %d: %v", when, name, at, err)
		}
		at += k
	}
	if !bytes.Equal(got, want) {
		n.t.Errorf("%s: %s has other bytes", when, name)
	}
}

// stored gives the bytes of all packs in the bucket.
func stored(t *testing.T, s *s3server.Server) (n int64) {
	t.Helper()
	must(t, filepath.WalkDir(filepath.Join(s.Dir(), "checkpoints", "p", "packs"),
		func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			i, err := d.Info()
			if os.IsNotExist(err) {
				return nil
			}
			n += i.Size()
			return err
		}))
	return n
}

// TestRepack removes all but a few of many checkpoints that share packs. A collection repacks what is left. The bucket
// shrinks, and each checkpoint that stands can be read: on a node that pulls it then, on one that has pulled it before
// and read half of it, while readers have their time and later, and where it was dumped.
func TestRepack(t *testing.T) {
	s, address := newBucket(t)
	one, two, early := newNode(t, address), newNode(t, address), newNode(t, address)
	noise := func(seed byte, n int) []byte {
		b := make([]byte, n)
		rand.NewChaCha8([32]byte{seed}).Read(b)
		return b
	}
	model := noise(1, 12<<20)
	stand := map[string][]byte{
		"b": append(bytes.Clone(model[:2<<20]), noise(2, 500_000)...),
		"c": append(bytes.Clone(model[6<<20:8<<20]), noise(3, 500_000)...),
		"d": append(bytes.Clone(model[:1<<20]), model[6<<20:7<<20]...),
	}
	one.dumpBytes("a", model)
	one.dumpBytes("b", stand["b"])
	two.dumpBytes("c", stand["c"])
	two.dumpBytes("d", stand["d"])
	two.dumpBytes("e", append(bytes.Clone(model[9<<20:]), noise(4, 4<<20)...))
	for name, data := range stand {
		early.pull(name)
		early.reads("before", name, data, 2)
	}
	r, err := one.remote.Store(t.Context())
	must(t, err)
	for _, name := range []string{"a", "e"} {
		must(t, r.Remove(t.Context(), name))
	}
	collect := func(n *node, patience time.Duration, dry bool) remotes.Collected {
		t.Helper()
		c, err := n.remote.Collect(t.Context(), remotes.CollectOptions{Patience: patience, Repack: 1 << 30,
			Holds: n.store.Holds, DryRun: dry})
		must(t, err)
		return c
	}
	full := stored(t, s)
	dry := collect(one, time.Hour, true)
	if again := collect(one, time.Hour, true); dry.Repacked.Packs != 1 || again != dry || stored(t, s) != full {
		t.Errorf("a dry run tells %+v, then %+v", dry, again)
	}
	got := collect(one, time.Hour, false).Repacked
	if got.Packs != 1 || got.Checkpoints != 3 || got.Bytes != dry.Repacked.Bytes || got.Copied > 6<<20 ||
		got.Read == 0 || got.Written < got.Copied || got.Read+got.Written > 14<<20 {
		t.Errorf("repacked %+v", got)
	}
	t.Logf("repacked %+v", got)
	for name, data := range stand {
		early.reads("by the older list", name, data, 1)
	}
	early.close() // what it has read is not there any more
	must(t, os.RemoveAll(filepath.Join(early.dir, index.CacheFolder)))
	early.open()
	early.reads("by the older list, from the bucket", "b", stand["b"], 2)
	if again := collect(two, time.Hour, false).Repacked; again.Packs != 0 || again.Written != 0 {
		t.Errorf("repacked again: %+v", again)
	}
	// The readers have had their time.
	collect(one, time.Nanosecond, false)
	if left := stored(t, s); left > full/2 {
		t.Errorf("%d bytes of packs, and %d before", left, full)
	} else {
		t.Logf("%d bytes of packs, and %d before", left, full)
	}
	must(t, os.RemoveAll(filepath.Join(early.dir, index.CacheFolder)))
	late := newNode(t, address)
	for name, data := range stand {
		early.reads("the old packs are gone", name, data, 1)
		late.pull(name)
		late.reads("pulled late", name, data, 1)
	}
	one.reads("where it was dumped", "b", stand["b"], 1)
	// What the bucket has is not sent again by who knew where it lay before.
	puts := func() int64 { return two.remote.Requests().Kinds[bucket.KindPut].Bytes }
	before := puts()
	two.dumpBytes("f", stand["c"])
	if sent := puts() - before; sent > 200_000 {
		t.Errorf("%d bytes were sent of a checkpoint that the bucket has", sent)
	}
	list, err := r.List(t.Context())
	if err != nil || len(list) != 4 {
		t.Errorf("the list is %v, %v", list, err)
	}
}

// TestCollectThatFails: where nothing can be repacked, what removed checkpoints have left goes all the same, once it
// has been seen for long enough.
func TestCollectThatFails(t *testing.T) {
	s, address := newBucket(t)
	n := newNode(t, address)
	noise := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{7}).Read(noise)
	n.dumpBytes("base", noise[:4<<20])
	n.dumpBytes("part", noise[:1<<20])
	n.dumpBytes("gone", noise[4<<20:])
	r, err := n.remote.Store(t.Context())
	must(t, err)
	for _, name := range []string{"base", "gone"} {
		must(t, r.Remove(t.Context(), name))
	}
	broken := errors.New("the memory for it is not to be had")
	for range 3 {
		c, err := n.remote.Collect(t.Context(), remotes.CollectOptions{Patience: time.Nanosecond, Repack: 1 << 30,
			Holds: func(pack.Chunk, []byte) error { return broken }})
		if !errors.Is(err, broken) {
			t.Fatalf("collected %+v, %v", c, err)
		}
	}
	if left := stored(t, s); left > 5<<20 {
		t.Errorf("%d bytes are left", left)
	}
}

// TestUnseenMoves: a store that is open for reading only does not find what was repacked. It says so, and not only that
// it is gone.
func TestUnseenMoves(t *testing.T) {
	_, address := newBucket(t)
	one, two := newNode(t, address), newNode(t, address)
	noise := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{8}).Read(noise)
	one.dumpBytes("base", noise)
	one.dumpBytes("part", noise[:1<<20])
	two.pull("part")
	r, err := one.remote.Store(t.Context())
	must(t, err)
	must(t, r.Remove(t.Context(), "base"))
	for range 2 {
		_, err := one.remote.Collect(t.Context(), remotes.CollectOptions{Patience: time.Nanosecond, Repack: 1 << 30,
			Holds: one.store.Holds})
		must(t, err)
	}
	fails := func(st *index.Store, why string) {
		t.Helper()
		c, err := st.Checkpoint("part")
		must(t, err)
		if _, err := fs.ReadFile(c.FS(), "pages-1.img"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("reading says %v, and not: %s", err, why)
		}
	}
	two.close()
	o := index.Options{FreeFloor: 1, ReadOnly: true}
	rem, err := remotes.Of(two.dir, &o, quiet)
	must(t, err)
	st, err := index.Open(t.Context(), two.dir, o)
	must(t, err)
	fails(st, "open for reading only")
	must(t, st.Close())
	rem.Close()
	two.open()
	two.reads("open for writing", "part", noise[:1<<20], 1)
}
