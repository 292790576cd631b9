package vram

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
)

// Of a BO its first and last bytes and two places between are compared, when
// not all of it is.
const (
	placeBytes = 64 << 10
	places     = 4
)

// verifiers is how many goroutines compare.
const verifiers = 8

// Verify reads BOs back and compares them with the image files: all of them, or
// samples when Options.Verify is VerifySample. VerifyNone does nothing.
func Verify(ctx context.Context, src Source, plan Plan, opts Options) (Report, error) {
	w, err := begin(ctx, "verify", plan, opts)
	if err != nil {
		return Report{}, err
	}
	files, err := openFiles(w, src)
	if err == nil && w.opts.Verify != VerifyNone {
		w.expect(files)
		err = w.verify(files)
	}
	rep := w.report()
	rep.Verification = time.Since(w.begun)
	return rep, w.end(first(err, closeFiles(files)))
}

// sample is what is compared at once: places of one BO that together fit a slot.
type sample struct {
	*contents
	places []place
	sums   []end // the same places, with what is known of them; nil for nothing
}

type place struct{ off, n int64 }

// samples calls yield for what is compared until it returns false.
func (w *work) samples(files []*contents, yield func(sample) bool) {
	step := int64(w.staging.slot)
	for i, c := range files {
		if w.opts.Verify == VerifySample && (c.size <= smallBO || len(c.bos) > 1) {
			if c.ends == nil {
				c.listEnds(min(endBytes, step/2))
			}
			s := sample{contents: c, sums: c.ends}
			for _, e := range c.ends {
				s.places = append(s.places, e.place)
			}
			if !yield(s) {
				return
			}
			continue
		}
		if w.opts.Verify == VerifyAll {
			for off := int64(0); off < c.size; off += step {
				if !yield(sample{contents: c, places: []place{{off, min(step, c.size-off)}}}) {
					return
				}
			}
			continue
		}
		n := min(placeBytes, step/places)
		// The same places every time, so that a difference is found again.
		rnd := rand.New(rand.NewPCG(uint64(i), uint64(c.size)))
		at := func() int64 { return rnd.Int64N((c.size-n)/4+1) * 4 }
		if !yield(sample{contents: c, places: []place{{0, n}, {(c.size - n) / 4 * 4, n}, {at(), n}, {at(), n}}}) {
			return
		}
	}
}

// expect adds what will be compared to what there is to do.
func (w *work) expect(files []*contents) {
	w.samples(files, func(s sample) bool {
		w.total += s.bytes()
		return true
	})
}

func (s sample) bytes() (n uint64) {
	for _, p := range s.places {
		n += uint64(p.n)
	}
	return n
}

// verify compares with both the copy from the GPU and the read from the image
// under way at once.
func (w *work) verify(files []*contents) error {
	todo := make(chan sample)
	var wg sync.WaitGroup
	for range min(verifiers, w.staging.slots()/2) {
		wg.Go(func() {
			for s := range todo {
				if w.failed() == nil {
					if err := w.compare(s); err != nil {
						w.failWith(err)
					}
				}
			}
		})
	}
	w.samples(files, func(s sample) bool {
		select {
		case todo <- s:
			return true
		case <-w.ctx.Done():
			return false
		}
	})
	close(todo)
	wg.Wait()
	if err := w.failed(); err != nil {
		return err
	}
	return w.healthy()
}

// compare holds places of BOs against their image. Its error names the BO.
func (w *work) compare(s sample) error {
	has, want := w.staging.Get(), w.staging.Get()
	defer w.staging.Put(has)
	defer w.staging.Put(want)
	has, want = has[:s.bytes()], want[:s.bytes()]
	var ops []drm.Op
	d := s.dev()
	dst, at, err := d.slot(has)
	if err != nil {
		return w.wrong(s.bos[0], err)
	}
	for _, p := range s.places {
		err := s.pieces(p.off, p.n, func(_ int, buf *drm.Buffer, from, after, n int64) {
			ops = append(ops, drm.Op{Dst: dst, DstOff: at + uint64(after), Src: buf, SrcOff: uint64(from),
				N: uint64(n)})
		})
		if err != nil {
			return err
		}
		at += uint64(p.n)
	}
	fence, err := d.dev.Submit(w.ctx, ops...)
	if err != nil {
		return w.wrong(s.bos[0], err)
	}
	doubt := s.unread()
	rerr := s.read(want, doubt)
	if err := first(fence.Wait(w.waits), rerr); err != nil {
		return w.wrong(s.bos[0], err)
	}
	differs := s.differing(has, doubt)
	if err := s.read(want, differs); err != nil {
		return w.wrong(s.bos[0], err)
	}
	for i, p := range s.places {
		if (doubt[i] || differs[i]) && !bytes.Equal(has[:p.n], want[:p.n]) {
			return s.difference(p, has, want)
		}
		has, want = has[p.n:], want[p.n:]
	}
	w.mu.Lock()
	w.verified += s.bytes()
	w.mu.Unlock()
	w.tell()
	return nil
}

// read reads the places that pick says from the image into their parts of b. Those that follow each other are read at
// once.
func (s sample) read(b []byte, pick []bool) error {
	for i := 0; i < len(s.places); i++ {
		off, n := s.places[i].off, s.places[i].n
		for i+1 < len(s.places) && pick[i] && pick[i+1] && s.places[i+1].off == off+n {
			i++
			n += s.places[i].n
		}
		if pick[i] {
			if _, err := s.ReadAt(b[:n], off); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

// difference names the first byte of a place that differs.
func (s sample) difference(p place, has, want []byte) error {
	at := int64(0)
	for has[at] == want[at] {
		at++
	}
	k := s.at(p.off + at)
	return s.w.wrong(s.bos[k], fmt.Errorf("byte %#x of it is %#02x, the image has %#02x", p.off+at-s.starts[k], has[at],
		want[at]))
}
