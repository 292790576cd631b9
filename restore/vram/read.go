package vram

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/kfd/image"
)

// Read writes the contents of a plan's BOs to the image files they name, each
// file with its header. The BOs of a file must follow each other without a gap
// from byte 8 on. Files are written front to back, all at once.
func Read(ctx context.Context, plan Plan, sink Sink, opts Options) (Report, error) {
	w, err := begin(ctx, "read", plan, opts)
	if err != nil {
		return Report{}, err
	}
	files, err := w.outputs()
	if err == nil {
		var wg sync.WaitGroup
		ahead := max(2, w.staging.slots()/max(1, len(files)))
		for _, o := range files {
			wg.Go(func() { w.readFile(o, sink, ahead) })
		}
		wg.Wait()
		err = w.complete()
	}
	rep := w.report()
	return rep, w.end(err)
}

// output is an image file to write: BOs one after the other.
type output struct {
	name string
	bos  []int
	size int64
}

func (w *work) outputs() ([]*output, error) {
	byName := map[string]*output{}
	var out []*output
	for i, bo := range w.plan.BOs {
		o := byName[bo.File]
		if o == nil {
			o = &output{name: bo.File, size: image.HeaderSize}
			byName[bo.File] = o
			out = append(out, o)
		}
		o.bos = append(o.bos, i)
	}
	for _, o := range out {
		slices.SortStableFunc(o.bos, func(a, b int) int { return cmp.Compare(w.plan.BOs[a].Off, w.plan.BOs[b].Off) })
		for _, i := range o.bos {
			if bo := w.plan.BOs[i]; bo.Off != o.size {
				return nil, w.wrong(i,
					fmt.Errorf("its place in %s is byte %d, not %d where the one before ends", o.name, bo.Off, o.size))
			}
			o.size += int64(w.plan.BOs[i].Size)
		}
	}
	return out, nil
}

// arrival is a part of a BO on its way to a slot.
type arrival struct {
	fence *drm.Fence
	bo    int
	slot  []byte
	n     int
}

// readFile writes one file, its copies up to ahead slots in advance.
func (w *work) readFile(o *output, sink Sink, ahead int) {
	file, err := sink.Create(o.name, o.size)
	if err != nil {
		w.fail(o.bos[0], err)
		return
	}
	arrivals := make(chan arrival, ahead-1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(arrivals)
		w.order(o, arrivals)
	})
	if _, err := file.Write(image.AppendHeader(nil, uint64(o.size-image.HeaderSize))); err != nil {
		w.fail(o.bos[0], err)
	}
	last := o.bos[0]
	for a := range arrivals {
		last = a.bo
		w.arrive(a, file)
	}
	wg.Wait()
	if err := file.Close(); err != nil {
		w.fail(last, fmt.Errorf("close %s: %w", o.name, err))
	}
}

// order submits the copies of a file's BOs.
func (w *work) order(o *output, arrivals chan<- arrival) {
	for _, i := range o.bos {
		t := w.targets[i]
		buf, err := t.get()
		if err != nil {
			w.fail(i, err)
			return
		}
		for off := uint64(0); off < t.bo.Size; off += uint64(w.staging.slot) {
			slot := w.staging.Get()
			n := min(uint64(w.staging.slot), t.bo.Size-off)
			dst, at, err := t.dev.slot(slot)
			var fence *drm.Fence
			if err == nil {
				fence, err = t.dev.dev.Submit(w.ctx, drm.Op{Dst: dst, DstOff: at, Src: buf, SrcOff: off, N: n})
			}
			if err != nil {
				w.staging.Put(slot)
				w.fail(i, err)
				return
			}
			arrivals <- arrival{fence, i, slot, int(n)}
		}
	}
}

// arrive waits for a part of a BO and writes it.
func (w *work) arrive(a arrival, file io.Writer) {
	defer w.staging.Put(a.slot)
	if err := a.fence.Wait(w.waits); err != nil {
		w.fail(a.bo, err)
		return
	}
	if w.failed() != nil {
		return
	}
	if _, err := file.Write(a.slot[:a.n]); err != nil {
		w.fail(a.bo, fmt.Errorf("write %s: %w", w.plan.BOs[a.bo].File, err))
		return
	}
	w.account(a.bo, uint64(a.n))
}
