package index

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// sealAndCompare seals d, whose only file is p, and holds it against the model: read, collected, read again by another
// process.
func sealAndCompare(t *testing.T, s *Store, d *drafts.Draft, p string, model []byte) {
	t.Helper()
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHold(t, s, d.Name(), map[string][]byte{p: model})
	checkSegments(t, s)
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	mustHold(t, s, d.Name(), map[string][]byte{p: model})
}

// checkSegments holds every stored segment to what a writer may make of it.
func checkSegments(t *testing.T, s *Store) {
	t.Helper()
	err := s.chunks.DB.Metas(manifest.SegmentPrefix, func(key string, _ uint64, payload []byte, err error) error {
		if err != nil {
			return err
		}
		seg, err := manifest.DecodeSegment(payload)
		if err != nil {
			return err
		}
		if len(seg.Chunks) > manifest.MaxChunks || len(seg.Runs) > manifest.MaxRuns+512 {
			return fmt.Errorf("%s has %d chunks and %d runs", key, len(seg.Chunks), len(seg.Runs))
		}
		used := map[int32]bool{}
		for _, r := range seg.Runs {
			used[r.Chunk] = true
		}
		delete(used, manifest.ZeroRun)
		if len(used) != len(seg.Chunks) {
			return fmt.Errorf("%s names %d chunks and uses %d", key, len(seg.Chunks), len(used))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOverwritesAtOnePlace: each overwrite stores its page anew. Nine thousand of them are no more than one.
func TestOverwritesAtOnePlace(t *testing.T) {
	for _, size := range []int{10_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			s := newTestStore(t, testOptions(t))
			d, f := draftFile(t, s, "a", "log")
			model := memory(1, size)
			if _, err := f.WriteAt(model, 0); err != nil {
				t.Fatal(err)
			}
			for i := range 9000 {
				p := fmt.Appendf(nil, "%d", i)
				copy(model[100:], p)
				if _, err := f.WriteAt(p, 100); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			sealAndCompare(t, s, d, "log", model)
		})
	}
}

func draftFile(t *testing.T, s *Store, name, p string) (*drafts.Draft, *drafts.DraftFile) {
	t.Helper()
	d, err := s.Create(t.Context(), name, drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create(p, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return d, f
}

// TestOverwritesEverywhere overwrites so many pages of a file that each of its segments outgrows its limit several
// times, with truncations, holes and appends between.
func TestOverwritesEverywhere(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newTestStore(t, testOptions(t))
			name := "data"
			if seed == 1 {
				name = "amdgpu-pages-1-0001.img" // pages begin behind a header
			}
			d, f := draftFile(t, s, "a", name)
			r := rand.New(rand.NewPCG(seed, 3))
			model := memory(seed, 34<<20)
			if _, err := f.WriteAt(model, 0); err != nil {
				t.Fatal(err)
			}
			for step := range 14000 {
				off := r.IntN(len(model))
				n := min(1+r.IntN(100<<(r.IntN(20)/19*6)), len(model)-off) // a few bytes, sometimes a page and a half
				var err error
				switch k := r.IntN(2000); {
				case k == 0 && step < 5000:
					n = len(model) - r.IntN(1<<20)
					model = model[:n]
					err = f.Truncate(int64(n))
				case k == 1 && step < 5000:
					p := memory(r.Uint64(), r.IntN(2<<20))
					_, err = f.WriteAt(p, int64(len(model)))
					model = append(model, p...)
				case k < 10:
					err = f.CloseEdited(r.IntN(1 << 14)) // as if more had been overwritten than is kept
				case k < 100:
					n = min(n*10, len(model)-off)
					clear(model[off : off+n])
					err = f.PunchHole(int64(off), int64(n))
				default:
					p := make([]byte, n)
					p[0], p[n-1] = byte(step), byte(step>>8)
					copy(model[off:], p)
					_, err = f.WriteAt(p, int64(off))
				}
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if step%4000 == 0 {
					got := make([]byte, len(model))
					if _, err := f.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					if !bytes.Equal(got, model) {
						t.Fatalf("step %d: read back different", step)
					}
				}
			}
			if n, _ := f.Segments(); n < 2 {
				t.Errorf("only %d segments: no limit was met", n)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			sealAndCompare(t, s, d, name, model)
		})
	}
}

// TestHolesAreRuns: a hole of any size is one run in each segment, and costs no walk over its bytes.
func TestHolesAreRuns(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, f := draftFile(t, s, "a", "sparse")
	const size = 1 << 50
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		if _, err := f.WriteAt([]byte("something"), i<<40); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.PunchHole(5, size-10); err != nil {
		t.Fatal(err)
	}
	if _, n := f.Segments(); n > 3 {
		t.Errorf("%d runs", n)
	}
	want := []byte("somet\x00\x00\x00")
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, off := range []int64{manifest.MaxFileSize, 1<<63 - 1, -1} {
		if _, err := f.WriteAt([]byte("x"), off); fault.ClassOf(err) != fault.Invalid {
			t.Errorf("write at %d: %v", off, err)
		}
		if err := f.Truncate(off + 1); off != -1 && fault.ClassOf(err) != fault.Invalid {
			t.Errorf("truncate to %d: %v", off, err)
		}
	}
	if err := f.Truncate(manifest.MaxFileSize); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info := openFile(t, s, "a", "sparse").Info(); info.Size != manifest.MaxFileSize {
		t.Errorf("%d bytes", info.Size)
	}
}

// TestManyOverwritesTakeLittleMemory: what was overwritten is not kept.
func TestManyOverwritesTakeLittleMemory(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, f := draftFile(t, s, "a", "f")
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const overwrites = 20000
	for i := range int64(overwrites) {
		if _, err := f.WriteAt(fmt.Appendf(nil, "%d", i), i*7919%(1<<18)<<12); err != nil {
			t.Fatal(err)
		}
	}
	if grown := int64(heap() - before); grown > 16<<20 {
		t.Errorf("%d overwrites hold %d bytes", overwrites, grown)
	}
	f.Close()
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
}

// TestWhatCannotBeReadIsRefused: a limit of the reader is met where something is made, not when the checkpoint is read.
func TestWhatCannotBeReadIsRefused(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, f := draftFile(t, s, "a", "f")
	f.Close()
	long := strings.Repeat("x", manifest.MaxName+1)
	var deep string
	for len(deep) < 3*manifest.MaxPath/4 {
		if err := d.Mkdir(deep+"d", 0o700); err != nil {
			t.Fatal(err)
		}
		deep += "d/"
	}
	if err := errors.Join(d.Mkdir("m", 0o700), d.Mkdir("m/"+strings.Repeat("m", 200), 0o700)); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		sub := "m/" + strings.Repeat("m", 200) + strings.Repeat("/"+strings.Repeat("m", 200), i+1)
		if err := d.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, created := d.Create(long, 0o600)
	for name, err := range map[string]error{
		"long name":        created,
		"long folder":      d.Mkdir(long, 0o700),
		"long link":        d.Symlink("f", long),
		"long target":      d.Symlink(strings.Repeat("x", manifest.MaxPath+1), "l"),
		"no target":        d.Symlink("", "l"),
		"renamed too long": d.Rename("f", long),
		"renamed too deep": d.Rename("m", deep+"m"),
		"tag no name": func() error {
			_, err := s.Create(t.Context(), "b", drafts.CreateOptions{Tags: []string{"../x"}})
			return err
		}(),
		"more tags": func() error {
			tags := make([]string, manifest.MaxTags+1)
			for i := range tags {
				tags[i] = fmt.Sprint("t", i)
			}
			_, err := s.Create(t.Context(), "b", drafts.CreateOptions{Tags: tags})
			return err
		}(),
	} {
		if fault.ClassOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.SetProfile("a", make([]byte, pack.MaxValue+1)); fault.ClassOf(err) != fault.Invalid {
		t.Errorf("profile: %v", err)
	}
	if err := s.SetProfile("a", make([]byte, pack.MaxValue)); err != nil {
		t.Error(err)
	}
	s = reopen(t, s)
	if _, err := s.Checkpoint("a"); err != nil {
		t.Error(err)
	}
	if p, err := s.Profile("a"); err != nil || len(p) != pack.MaxValue {
		t.Errorf("%d bytes, %v", len(p), err)
	}
}
