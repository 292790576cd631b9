package server

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
)

// A sample of a BO is its first and last bytes and two places between.
const (
	sampleBytes = 64 << 10
	samples     = 4
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

// places calls yield for what is compared until it returns false.
func (w *work) places(files []*contents, yield func(file int, off, n int64) bool) {
	step := int64(w.staging.slot)
	for i, c := range files {
		if w.opts.Verify == VerifyAll || c.size <= samples*sampleBytes {
			for off := int64(0); off < c.size; off += step {
				if !yield(i, off, min(step, c.size-off)) {
					return
				}
			}
			continue
		}
		n := min(sampleBytes, step)
		// The same places every time, so that a difference is found again.
		rnd := rand.New(rand.NewPCG(uint64(i), uint64(c.size)))
		for k := range int64(samples) {
			off := rnd.Int64N((c.size-n)/4+1) * 4
			switch k {
			case 0:
				off = 0
			case 1:
				off = (c.size - n) / 4 * 4
			}
			if !yield(i, off, n) {
				return
			}
		}
	}
}

// expect adds what will be compared to what there is to do.
func (w *work) expect(files []*contents) {
	w.places(files, func(_ int, _, n int64) bool {
		w.total += uint64(n)
		return true
	})
}

// verify compares with both the copy from the GPU and the read from the image
// under way at once.
func (w *work) verify(files []*contents) error {
	type place struct {
		file   int
		off, n int64
	}
	todo := make(chan place)
	var wg sync.WaitGroup
	for range min(verifiers, w.staging.slots()/2) {
		wg.Go(func() {
			for p := range todo {
				if w.failed() == nil {
					if err := w.compare(files[p.file], p.off, p.n); err != nil {
						w.fail(files[p.file].bo, err)
					}
				}
			}
		})
	}
	w.places(files, func(file int, off, n int64) bool {
		select {
		case todo <- place{file, off, n}:
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

// compare holds a part of a BO against its image.
func (w *work) compare(c *contents, off, n int64) error {
	t := w.targets[c.bo]
	buf, err := t.get()
	if err != nil {
		return err
	}
	has, want := w.staging.Get(), w.staging.Get()
	defer w.staging.Put(has)
	defer w.staging.Put(want)
	has, want = has[:n], want[:n]
	fence, err := t.dev.dev.Submit(w.ctx, drm.Op{Dst: t.dev.staging, DstOff: w.staging.offset(has), Src: buf, SrcOff: uint64(off), N: uint64(n)})
	if err != nil {
		return err
	}
	_, rerr := c.ReadAt(want, off)
	if err := fence.Wait(w.waits); err != nil {
		return err
	}
	if rerr != nil {
		return rerr
	}
	if !bytes.Equal(has, want) {
		for i := range has {
			if has[i] != want[i] {
				return fmt.Errorf("byte %#x of it is %#02x, the image has %#02x", off+int64(i), has[i], want[i])
			}
		}
	}
	w.mu.Lock()
	w.verified += uint64(n)
	w.mu.Unlock()
	w.tell()
	return nil
}
