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

// sample is what is compared at once: places of BOs of one GPU that together fit a slot.
type sample []place

// place is a part of contents.
type place struct {
	*contents
	off, n int64
	sum    *end // what is known of the bytes; nil for nothing
}

// samples calls yield for what is compared until it returns false.
func (w *work) samples(files []*contents, yield func(sample) bool) {
	step := int64(w.staging.slot)
	ends := map[*device]sample{}
	for i, c := range files {
		if w.opts.Verify == VerifySample && (c.size <= smallBO || len(c.bos) > 1) {
			if c.ends == nil {
				c.listEnds(min(endBytes, step/2))
			}
			for k := range c.ends {
				// So many that a submission is worth its while.
				d, e := c.dev(), &c.ends[k]
				if s := ends[d]; len(s) == maxEnds || s.bytes()+uint64(e.n) > uint64(step) {
					if !yield(s) {
						return
					}
					ends[d] = nil
				}
				ends[d] = append(ends[d], place{c, e.off, e.n, e})
			}
			continue
		}
		if w.opts.Verify == VerifyAll {
			for off := int64(0); off < c.size; off += step {
				if !yield(sample{{c, off, min(step, c.size-off), nil}}) {
					return
				}
			}
			continue
		}
		n := min(placeBytes, step/places)
		// The same places every time, so that a difference is found again.
		rnd := rand.New(rand.NewPCG(uint64(i), uint64(c.size)))
		at := func() int64 { return rnd.Int64N((c.size-n)/4+1) * 4 }
		if !yield(sample{{c, 0, n, nil}, {c, (c.size - n) / 4 * 4, n, nil}, {c, at(), n, nil}, {c, at(), n, nil}}) {
			return
		}
	}
	for _, d := range w.devs {
		if s := ends[d]; len(s) > 0 && !yield(s) {
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
	for _, p := range s {
		n += uint64(p.n)
	}
	return n
}

// wrong makes an error about all of it.
func (s sample) wrong(err error) error {
	p, last := s[0], s[len(s)-1]
	bo, to := p.bos[p.at(p.off)], last.bos[last.at(last.off+last.n-1)]
	return p.w.wrong(bo, together(bo, to, err))
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
	d := s[0].dev()
	dst, at, err := d.slot(has)
	if err != nil {
		return s.wrong(err)
	}
	for _, p := range s {
		err := p.pieces(p.off, p.n, func(_ int, buf *drm.Buffer, from, after, n int64) {
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
		return s.wrong(err)
	}
	doubt := s.unread()
	rerr := s.read(want, doubt)
	if err := first(fence.Wait(w.waits), rerr); err != nil {
		return s.wrong(err)
	}
	differs := s.differing(has, doubt)
	if err := s.read(want, differs); err != nil {
		return s.wrong(err)
	}
	for i, p := range s {
		if (doubt[i] || differs[i]) && !bytes.Equal(has[:p.n], want[:p.n]) {
			return p.difference(has, want)
		}
		has, want = has[p.n:], want[p.n:]
	}
	w.mu.Lock()
	w.verified += s.bytes()
	w.mu.Unlock()
	w.tell()
	return nil
}

// read reads the places that pick says from the images into their parts of b. Those that follow each other are read at
// once.
func (s sample) read(b []byte, pick []bool) error {
	for i := 0; i < len(s); i++ {
		p, n := s[i], s[i].n
		for i+1 < len(s) && pick[i] && pick[i+1] && s[i+1].contents == p.contents && s[i+1].off == p.off+n {
			i++
			n += s[i].n
		}
		if pick[i] {
			if _, err := p.ReadAt(b[:n], p.off); err != nil {
				return p.w.wrong(p.bos[p.at(p.off)], err)
			}
		}
		b = b[n:]
	}
	return nil
}

// difference names the first byte that differs.
func (p place) difference(has, want []byte) error {
	at := int64(0)
	for has[at] == want[at] {
		at++
	}
	k := p.at(p.off + at)
	return p.w.wrong(p.bos[k], fmt.Errorf("byte %#x of it is %#02x, the image has %#02x", p.off+at-p.starts[k], has[at],
		want[at]))
}
