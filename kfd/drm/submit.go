package drm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Op is one copy of N bytes, or, without Src, N zero bytes.
type Op struct {
	Dst, Src       *Buffer
	DstOff, SrcOff uint64
	N              uint64
}

// check refuses what lies beyond a buffer.
func (o *Op) check(d *Device) error {
	in := func(b *Buffer, off uint64, what string) error {
		if b.dev != d || b.handle == 0 && b.mem == nil {
			return fmt.Errorf("%s is closed or another device's", what)
		}
		if off > b.size || o.N > b.size-off {
			return fmt.Errorf("%d bytes at %#x reach beyond a %s of %d bytes", o.N, off, what, b.size)
		}
		return nil
	}
	if o.N == 0 || o.Dst == nil {
		return errors.New("copy of nothing, or to nowhere")
	}
	if o.Src != nil {
		if err := in(o.Src, o.SrcOff, "source"); err != nil {
			return err
		}
	} else if (o.DstOff|o.N)%4 != 0 {
		return fmt.Errorf("fill of %d bytes at %#x is not of whole dwords", o.N, o.DstOff)
	}
	return in(o.Dst, o.DstOff, "destination")
}

// ring is an SDMA ring of the device's context.
type ring struct {
	dev    *Device
	number uint32
	free   chan int // IB slots
	// mu keeps what is written and what is submitted in order, and guards
	// args.
	mu   sync.Mutex
	args *csArgs
}

func newRing(d *Device, number uint32, firstSlot int) *ring {
	r := &ring{dev: d, number: number, free: make(chan int, ibSlots), args: new(csArgs)}
	for i := range ibSlots {
		r.free <- firstSlot + i
	}
	return r
}

// job is one IB under way.
type job struct {
	slot int
	seq  uint64
}

// Fence stands for a submission. Wait for each, once.
type Fence struct {
	ring *ring // nil: it was carried out at once
	jobs []job
}

// Ring tells which of the device's rings carries a submission out: fences of
// one ring are signalled in order.
func (f *Fence) Ring() int {
	if f.ring == nil {
		return 0
	}
	return slices.Index(f.ring.dev.rings, f.ring)
}

// Submit begins copies and fills. It waits while too many submissions are
// under way that nobody has waited for. Operations of one call may be carried
// out in any order if they need more than one IB; otherwise they keep theirs.
func (d *Device) Submit(ctx context.Context, ops ...Op) (*Fence, error) {
	if len(ops) == 0 {
		return nil, errors.New("submission of nothing")
	}
	var bytes uint64
	for i := range ops {
		if err := ops[i].check(d); err != nil {
			return nil, err
		}
		bytes += ops[i].N
	}
	d.mu.Lock()
	err := d.broken
	d.mu.Unlock()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	d.began(bytes)
	if d.kind == Mapping {
		defer d.ended()
		for _, o := range ops {
			o.byCPU()
		}
		return &Fence{}, nil
	}
	f := &Fence{ring: d.pickRing()}
	for len(ops) > 0 && err == nil {
		ops, err = f.add(ctx, ops)
	}
	if err != nil {
		// What was submitted of it already ends by itself.
		return nil, errors.Join(err, f.Wait(context.WithoutCancel(ctx)))
	}
	return f, nil
}

func (o *Op) byCPU() {
	dst := o.Dst.mem[o.DstOff:][:o.N]
	if o.Src == nil {
		clear(dst)
		return
	}
	copy(dst, o.Src.mem[o.SrcOff:])
}

// add submits as many operations as fit one IB and returns the others. What
// remains of an operation that was cut comes first; ops is changed.
func (f *Fence) add(ctx context.Context, ops []Op) ([]Op, error) {
	r := f.ring
	d := r.dev
	var slot int
	select {
	case slot = <-r.free:
	case <-ctx.Done():
		return ops, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := uint64(slot) * ibBytes
	buf := d.ib.mem[at : at : at+ibBytes]
	handles := []uint32{d.ib.handle}
	ops = slices.Clone(ops)
	for len(ops) > 0 {
		o := &ops[0]
		if len(buf)+d.gen.copyPacketBytes() > ibBytes-ibAlign || len(handles)+2 > maxListed {
			break
		}
		n := min(o.N, d.gen.maxBytes())
		handles = list(handles, o.Dst)
		if o.Src != nil {
			handles = list(handles, o.Src)
			buf = d.gen.appendCopy(buf, o.Dst.va+o.DstOff, o.Src.va+o.SrcOff, n)
		} else {
			buf = d.gen.appendZero(buf, o.Dst.va+o.DstOff, n)
		}
		if o.N -= n; o.N == 0 {
			ops = ops[1:]
			continue
		}
		o.DstOff, o.SrcOff = o.DstOff+n, o.SrcOff+n
	}
	buf = pad(buf)
	seq, err := r.submit(ctx, d.ib.va+at, uint32(len(buf)), handles)
	if err != nil {
		r.free <- slot
		return ops, fmt.Errorf("submit: %w", err)
	}
	f.jobs = append(f.jobs, job{slot, seq})
	return ops, nil
}

func list(handles []uint32, b *Buffer) []uint32 {
	if slices.Contains(handles, b.handle) {
		return handles
	}
	return append(handles, b.handle)
}

// Wait returns when the submission is complete. An error means that it was not
// carried out, or not all of it, and that the device is useless; with an error
// of ctx it may still be under way, and its memory must not be used until the
// device is closed.
func (f *Fence) Wait(ctx context.Context) error {
	if f.ring == nil {
		return nil
	}
	defer f.ring.dev.ended()
	for _, j := range f.jobs {
		if err := f.ring.waitFor(ctx, j.seq); err != nil {
			err = fmt.Errorf("copy on ring %d did not complete: %w", f.ring.number, err)
			f.ring.dev.fail(err)
			return err
		}
		f.ring.free <- j.slot
	}
	return nil
}
