package vram

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// counting counts the bytes that are read of a source.
type counting struct {
	Source
	n atomic.Int64
}

type countedFile struct {
	File
	c *counting
}

func (c *counting) Open(name string) (File, error) {
	f, err := c.Source.Open(name)
	return countedFile{f, c}, err
}

func (f countedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.c.n.Add(int64(n))
	return n, err
}

// addMixture adds small BOs of all sizes, some not of whole pages, and large ones between them.
func (r *rig) addMixture(n int) {
	for i := range n {
		switch size := page << (i * 5 % 7); {
		case i%50 == 20:
			r.add(1, i%2, content(byte(i), mib+page))
		case i%9 == 4:
			r.add(1, i%2, content(byte(i), size-1236))
		case i%13 == 6:
			r.add(1, i%2, content(byte(i), size-4))
		default:
			r.add(1, i%2, content(byte(i), size))
		}
	}
}

// What a fill has read of small BOs it does not read again to compare it: each read of a page has a store read and
// decode a chunk.
func TestFillReadsSmallOnce(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addMixture(300)
	src := &counting{Source: r.plain()}
	rep, err := Fill(within(t), src, r.plan, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.filled()
	want := int64(r.total())
	for _, bo := range r.plan.BOs {
		if bo.Size > smallBO {
			want += places * placeBytes // to be compared
		}
	}
	if src.n.Load() > want {
		t.Errorf("%d bytes were read, not %d, for buffer objects of %d", src.n.Load(), want, r.total())
	}
	if rep.Verified < 2*uint64(len(r.plan.BOs)) {
		t.Errorf("%d bytes were compared", rep.Verified)
	}
	store, _ := r.store()
	r.spoil()
	if _, err := Fill(within(t), store, r.plan, Options{}); err != nil {
		t.Fatal(err)
	}
	r.filled()
}

// The fill's own comparison finds one byte at either end of any small BO.
func TestFillFindsAFlippedEnd(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addMixture(60)
	src := r.plain()
	for bad := range r.plan.BOs {
		if r.plan.BOs[bad].Size > smallBO {
			continue
		}
		for _, at := range []int{0, len(r.vram[bad]) - 1} {
			err := r.fillThen(src, func() { r.vram[bad][at] ^= 0x20 })
			e := r.named(err)
			where := fmt.Sprintf("byte %#x of it", at)
			if e.BO.Index != bad || e.Op != "verify" || !strings.Contains(e.Error(), where) {
				t.Errorf("byte %#x of buffer object %d: %v", at, bad, err)
			}
		}
	}
}

// fillThen is Fill with something between the fill and its comparison.
func (r *rig) fillThen(src Source, then func()) error {
	w, err := begin(within(r.t), "fill", r.plan, Options{})
	if err != nil {
		return err
	}
	files, err := openFiles(w, src)
	if err == nil {
		w.expect(files)
		err = w.fill(files)
	}
	if err == nil {
		then()
		w.op = "verify"
		err = w.verify(files)
	}
	return w.end(first(err, closeFiles(files)))
}

// What one BO amid those that go together fails by is told with its name.
func TestOneOfManyFails(t *testing.T) {
	const bad = 37
	t.Run("image", func(t *testing.T) {
		r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
		r.addMixture(60)
		src := r.plain()
		bo := r.plan.BOs[bad]
		_, err := Fill(within(t), &damaged{Source: src, name: bo.File, at: bo.Off + 5}, r.plan, Options{})
		if e := r.named(err); e.BO.Index != bad || !errors.Is(err, errDamaged) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("store", func(t *testing.T) {
		r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
		r.addMixture(60)
		src, dir := r.store()
		packs, err := filepath.Glob(filepath.Join(dir, "packs", "*.pack"))
		if err != nil || len(packs) == 0 {
			t.Fatal(packs, err)
		}
		for _, p := range packs {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			want := r.want[bad][:32]
			if i := strings.Index(string(b), string(want)); i >= 0 {
				b[i+8] ^= 1
				if err := os.WriteFile(p, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, err = Fill(within(t), src, r.plan, Options{})
		if index.ClassOf(err) != index.Corrupt {
			t.Errorf("error is %v", err)
		}
		// A chunk may hold parts of several.
		bo := r.named(err).BO
		f, err := src.Open(bo.File)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.ReadAt(make([]byte, bo.Size), bo.Off); err == nil {
			t.Errorf("buffer object %d can be read, %d cannot", bo.Index, bad)
		}
	})
}

// A small BO that the profile names comes first, with no more than those that go together with it.
func TestProfileOrdersSmall(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	for i := range 300 {
		r.add(1, 0, content(byte(i), 64*kib))
	}
	src := &listing{Source: r.plain()}
	bo := r.plan.BOs[211]
	p := &prefetch.Profile{Files: []string{bo.File}, Touches: []prefetch.Range{{Off: bo.Off + page, Len: page}}}
	if _, err := Fill(within(t), src, r.plan, Options{Profile: p, Workers: 1, Verify: VerifyNone}); err != nil {
		t.Fatal(err)
	}
	r.filled()
	if first := src.reads[0]; first > bo.Off+page || first <= bo.Off-maxSlot {
		t.Errorf("the first read is at %d; the buffer object that the profile names lies from %d on", first, bo.Off)
	}
}
