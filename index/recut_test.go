package index

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// extents gives where a file's bytes lie.
func extents(t *testing.T, s *Store, ref, p string) []reading.Extent {
	t.Helper()
	f := openFile(t, s, ref, p)
	defer f.Close()
	var out []reading.Extent
	if err := f.Extents(0, f.Size(), func(x reading.Extent) bool { out = append(out, x); return true }); err != nil {
		t.Fatal(err)
	}
	return out
}

// A file cut at Seal is the same as one whose cuts were known before its first byte, whatever lies around them, and
// only what is near a cut is stored anew.
func TestCutsComeOutAsIfKnownBefore(t *testing.T) {
	t.Parallel()
	const p = "amdgpu-pages-1-0001.img"
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 7))
		content := append([]byte("8 bytes."), memory(seed+100, (2<<20)+r.IntN(6<<20)&^4095)...)
		if seed%2 == 1 {
			content = append(content, "the end"...)
		}
		cuts := []int64{8}
		for at := int64(8); ; {
			if at += int64(1+r.IntN(300)) * 4096; at >= int64(len(content)) {
				break
			}
			cuts = append(cuts, at)
		}
		o := testOptions(t)
		asked := 0
		o.Cuts = func(fsys fs.FS) (map[string][]int64, error) {
			asked++
			got, err := fs.ReadFile(fsys, "which.img")
			if err != nil {
				return nil, err
			}
			if string(got) != "at seal" {
				return nil, errors.New("nothing to cut")
			}
			// Those within a page and beyond the end are not heeded.
			return map[string][]int64{p: append(slices.Clone(cuts), cuts[len(cuts)-1]+5, 1<<40),
				"no such file": {1}}, nil
		}
		s := newTestStore(t, o)

		before, err := s.Create(t.Context(), "before", drafts.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := before.Create(p, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.CutAt(slices.Clone(cuts))
		if _, err := f.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		fill(t, before, map[string][]byte{"which.img": []byte("before")})
		if _, err := before.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(t, s, "at-seal", map[string][]byte{p: content, "which.img": []byte("at seal")})
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}

		want, got := extents(t, s, "before", p), extents(t, s, "at-seal", p)
		if !slices.Equal(want, got) {
			t.Fatalf("seed %d: cut at seal:\n%v\ncut before:\n%v", seed, got, want)
		}
		s = reopen(t, s)
		rf := openFile(t, s, "at-seal", p)
		back, err := io.ReadAll(io.NewSectionReader(rf, 0, rf.Size()))
		if err != nil || !bytes.Equal(back, content) {
			t.Fatalf("seed %d: %d of %d bytes came back, or others: %v", seed, len(back), len(content), err)
		}
		rf.Close()
		for _, cut := range cuts {
			i := slices.IndexFunc(got, func(x reading.Extent) bool { return x.Off == cut })
			if i >= 0 && !got[i].Zero && got[i].ChunkOff != 0 {
				t.Errorf("seed %d: no chunk begins at %d", seed, cut)
			}
		}
	}
}

// What was sealed with cuts survives gc, and gc gives the chunks back that were cut up.
func TestCutUpChunksAreGarbage(t *testing.T) {
	o := testOptions(t)
	o.Cuts = func(fs.FS) (map[string][]int64, error) {
		return map[string][]int64{"pages-1.img": {4096, 5 << 20, 9<<20 + 8192}}, nil
	}
	s := newTestStore(t, o)
	content := map[string][]byte{"pages-1.img": memory(3, 16<<20)}
	write(t, s, "c", content)
	res, err := s.GC(t.Context(), upkeep.GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res.DeadChunks == 0 || res.Reclaimed > 8<<20 {
		t.Errorf("gc: %+v", res)
	}
	mustHold(t, s, "c", content)
	v, err := s.Verify(t.Context(), upkeep.VerifyOptions{})
	if err != nil || len(v.Problems) > 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// A view that cannot be understood changes nothing.
func TestCutsThatFail(t *testing.T) {
	o := testOptions(t)
	o.Cuts = func(fsys fs.FS) (map[string][]int64, error) {
		if _, err := fs.ReadFile(fsys, "missing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("reading a missing file: %v", err)
		}
		return nil, errors.New("an image makes no sense")
	}
	s := newTestStore(t, o)
	content := map[string][]byte{"pages-1.img": memory(4, 1<<20)}
	write(t, s, "c", content)
	mustHold(t, s, "c", content)
}

// endsAfter is a context that ends once it was asked so many times.
type endsAfter struct {
	context.Context
	left atomic.Int64
}

func (c *endsAfter) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// A seal fails when it has stored the last page of a file, which is no whole one. The next seal, that cuts the file,
// has all of it, whether it has grown or not.
func TestCutAfterAFailedSeal(t *testing.T) {
	for _, more := range []int{0, 2 << 20} {
		o := testOptions(t)
		const size = 3<<20 + 777
		cut := false
		o.Cuts = func(fs.FS) (map[string][]int64, error) {
			if !cut {
				return nil, nil
			}
			return map[string][]int64{"amdgpu-pages-1.img": {8 + (size-8)&^4095 - 4096}}, nil
		}
		s := newTestStore(t, o)
		files := map[string][]byte{"amdgpu-pages-1.img": memory(1, size+more), "b.img": memory(2, 5000)}
		d := create(t, s, "a", drafts.CreateOptions{})
		fill(t, d, map[string][]byte{"amdgpu-pages-1.img": files["amdgpu-pages-1.img"][:size], "b.img": files["b.img"]})
		ctx := &endsAfter{Context: t.Context()}
		ctx.left.Store(1)
		if _, err := d.Seal(ctx); err == nil {
			t.Fatal("sealed")
		}
		f, err := d.Open("amdgpu-pages-1.img")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(files["amdgpu-pages-1.img"][size:], size); err != nil {
			t.Fatal(err)
		}
		f.Close()
		cut = true
		mustSeal(t, d)
		mustHold(t, s, "a", files)
		mustVerify(t, s, 0)
	}
}

// A chunk that was stored long ago is damaged now: a draft that has the same is sealed whether it is cut there or not.
func TestCutOfADamagedChunk(t *testing.T) {
	o := testOptions(t)
	cut := false
	o.Cuts = func(fs.FS) (map[string][]int64, error) {
		if !cut {
			return nil, nil
		}
		return map[string][]int64{"pages-1.img": {20 << 10}}, nil
	}
	s := newTestStore(t, o)
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20)}
	write(t, s, "old", files)
	packs, err := filepath.Glob(filepath.Join(s.dir, "packs", "*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatal(packs, err)
	}
	f, err := os.OpenFile(packs[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damaged"), 4096+100); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	cut = true
	d := create(t, s, "new", drafts.CreateOptions{})
	fill(t, d, files)
	mustSeal(t, d)
}
