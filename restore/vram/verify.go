package vram

import (
	"bytes"
	"context"
	"errors"
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

// Of a small BO its first and last bytes are compared: they tell whether its copy went to its place, and all of it.
const endBytes = pageBytes

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
}

type place struct{ off, n int64 }

// samples calls yield for what is compared until it returns false.
func (w *work) samples(files []*contents, yield func(sample) bool) {
	step := int64(w.staging.slot)
	for i, c := range files {
		if w.opts.Verify == VerifySample && (c.size <= smallBO || len(c.bos) > 1) {
			if !yield(sample{c, c.ends(min(endBytes, step/2))}) {
				return
			}
			continue
		}
		if w.opts.Verify == VerifyAll {
			for off := int64(0); off < c.size; off += step {
				if !yield(sample{c, []place{{off, min(step, c.size-off)}}}) {
					return
				}
			}
			continue
		}
		n := min(placeBytes, step/places)
		// The same places every time, so that a difference is found again.
		rnd := rand.New(rand.NewPCG(uint64(i), uint64(c.size)))
		at := func() int64 { return rnd.Int64N((c.size-n)/4+1) * 4 }
		if !yield(sample{c, []place{{0, n}, {(c.size - n) / 4 * 4, n}, {at(), n}, {at(), n}}}) {
			return
		}
	}
}

// ends are the first and the last n bytes of each BO; those that follow each other are one place.
func (c *contents) ends(n int64) (out []place) {
	add := func(off, end int64) {
		if i := len(out) - 1; i >= 0 && out[i].off+out[i].n >= off {
			out[i].n = end - out[i].off
			return
		}
		out = append(out, place{off, end - off})
	}
	for i, start := range c.starts {
		end := c.size
		if i+1 < len(c.starts) {
			end = c.starts[i+1]
		}
		add(start, min(start+n, end))
		add(max(start, end-n), end)
	}
	return out
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
	var rerr error
	for rest, i := want, 0; i < len(s.places) && rerr == nil; i++ {
		n := s.places[i].n
		_, rerr = s.ReadAt(rest[:n], s.places[i].off)
		rest = rest[n:]
	}
	if err := first(fence.Wait(w.waits), rerr); err != nil {
		return w.wrong(s.bos[0], err)
	}
	if !bytes.Equal(has, want) {
		return s.difference(has, want)
	}
	w.mu.Lock()
	w.verified += s.bytes()
	w.mu.Unlock()
	w.tell()
	return nil
}

// difference names the first byte that differs.
func (s sample) difference(has, want []byte) error {
	i := 0
	for has[i] == want[i] {
		i++
	}
	at := int64(i)
	for _, p := range s.places {
		if at < p.n {
			k := s.at(p.off + at)
			return s.w.wrong(s.bos[k], fmt.Errorf("byte %#x of it is %#02x, the image has %#02x", p.off+at-s.starts[k],
				has[i], want[i]))
		}
		at -= p.n
	}
	return s.w.wrong(s.bos[0], errors.New("it differs from the image"))
}
