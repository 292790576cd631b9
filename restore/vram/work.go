package vram

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/drm"
)

// work is one call of Fill, Read or Verify.
type work struct {
	op      string
	opts    Options
	plan    Plan
	staging *staging
	devs    []*device
	targets []*target
	begun   time.Time
	seed    maphash.Seed // of the hashes of ends

	// ctx ends with the first error; waits is the context for what is in
	// flight then.
	ctx    context.Context
	cancel context.CancelCauseFunc
	waits  context.Context
	stop   func()

	mu       sync.Mutex
	cause    error  // of the BO that ended the work
	follows  bool   // cause is the consequence of an error still to come
	done     uint64 // bytes of all BOs in place
	left     []uint64
	zero     uint64
	verified uint64
	total    uint64 // to be moved, and to be read back
	last     uint64 // what Progress was told
	told     time.Time
	telling  bool
}

// device is a GPU at work.
type device struct {
	name    string
	dev     *drm.Device
	area    *staging
	staging []registered  // by slot
	flights []chan flight // by ring
	waiters sync.WaitGroup
}

// registered is a slot of staging memory as a GPU sees it, from its first use on.
type registered struct {
	once   sync.Once
	buffer *drm.Buffer
	err    error
}

// slot returns the slot that b is a part of, and where in it b begins. A submission
// makes the driver look up all pages of each piece of memory that it lists, so that
// slots are registered one by one.
func (d *device) slot(b []byte) (*drm.Buffer, uint64, error) {
	k := d.area.number(b)
	r := &d.staging[k]
	r.once.Do(func() { r.buffer, r.err = d.dev.Register(d.area.part(k)) })
	return r.buffer, d.area.offset(b) - uint64(k*d.area.slot), r.err
}

// target is a BO, imported when it is first touched.
type target struct {
	bo     BO
	dev    *device
	once   sync.Once
	buffer *drm.Buffer
	err    error
}

// flight is a submission under way.
type flight struct {
	fence  *drm.Fence
	pieces []piece
	zero   bool
	slot   []byte // to give back; nil for none
}

// grace is how long submissions in flight are waited for after an error. The
// driver resets a GPU that hangs sooner.
const grace = 30 * time.Second

// ringFlights is how many submissions a ring has waiting. More do not keep an
// engine busier; they keep slots, and memory that is not in use need not be
// touched and stays out of the processor's cache.
const ringFlights = 4

var errDone = errors.New("done")

// begin checks the plan and opens the GPUs.
func begin(ctx context.Context, op string, plan Plan, opts Options) (*work, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	w := &work{op: op, opts: opts, plan: plan, begun: time.Now(), seed: maphash.MakeSeed()}
	if err := w.check(); err != nil {
		return nil, err
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	var stop context.CancelFunc
	w.waits, stop = context.WithCancel(context.WithoutCancel(ctx))
	cancelGrace := context.AfterFunc(w.ctx, func() { time.AfterFunc(grace, stop) })
	w.stop = func() { cancelGrace(); w.cancel(errDone); stop() }
	if err := w.open(); err != nil {
		return nil, w.end(err)
	}
	return w, nil
}

func (w *work) check() error {
	for i := range w.plan.BOs {
		bo := &w.plan.BOs[i]
		switch {
		case bo.Node < 0 || bo.Node >= len(w.plan.Nodes) || bo.Dmabuf == nil:
			return w.wrong(i, errors.New("no render node or no dma-buf came with it"))
		case bo.Size == 0 || bo.Size%4 != 0 || bo.Size > 1<<62:
			return w.wrong(i, fmt.Errorf("its size, %d bytes, is none that a gpu's memory has", bo.Size))
		case bo.File == "" || bo.Off < 0 || bo.Off > 1<<62:
			return w.wrong(i, fmt.Errorf("its contents have no place (%q, byte %d)", bo.File, bo.Off))
		}
		if w.op != "verify" {
			w.total += bo.Size
		}
		w.left = append(w.left, bo.Size)
	}
	return nil
}

func (w *work) open() error {
	var err error
	if w.staging, err = newStaging(w.opts.Staging); err != nil {
		return err
	}
	used := make([]bool, len(w.plan.Nodes))
	for _, bo := range w.plan.BOs {
		used[bo.Node] = true
	}
	w.devs = make([]*device, len(w.plan.Nodes))
	for i, n := range w.plan.Nodes {
		if !used[i] {
			continue // a GPU that the process sees and does not use
		}
		if w.devs[i], err = w.openDevice(n); err != nil {
			return fmt.Errorf("%s: render node %s: %w", w.op, n.Name, err)
		}
	}
	for _, bo := range w.plan.BOs {
		w.targets = append(w.targets, &target{bo: bo, dev: w.devs[bo.Node]})
	}
	return nil
}

func (w *work) openDevice(n Node) (*device, error) {
	if n.File == nil {
		return nil, errors.New("it is not open")
	}
	dev, err := drm.Open(n.File, drm.Options{Kind: w.opts.Engine})
	if err != nil {
		return nil, err
	}
	d := &device{name: n.Name, dev: dev, area: w.staging, staging: make([]registered, w.staging.slots())}
	if dev.Kind() == drm.Mapping && w.opts.Engine == drm.Auto {
		w.opts.Logger.Warn("copy engines do not serve, the cpu copies", "node", n.Name)
	}
	for range dev.Rings() {
		ch := make(chan flight, ringFlights)
		d.flights = append(d.flights, ch)
		d.waiters.Go(func() {
			for f := range ch {
				w.land(f)
			}
		})
	}
	return d, nil
}

// end closes everything and returns err. That something could not be closed
// changes nothing about the BOs.
func (w *work) end(err error) error {
	w.settle()
	var errs []error
	for _, d := range w.devs {
		if d == nil {
			continue
		}
		if err := d.dev.Close(); err != nil {
			errs = append(errs, fmt.Errorf("render node %s: %w", d.name, err))
		}
	}
	if w.staging != nil {
		errs = append(errs, w.staging.close())
	}
	w.stop()
	if late := errors.Join(errs...); late != nil {
		w.opts.Logger.Warn("cannot clear up", "op", w.op, "error", late)
	}
	return err
}

// settle waits for everything in flight. Preconditions: nothing is submitted
// any more by others.
func (w *work) settle() {
	for _, d := range w.devs {
		if d == nil {
			continue
		}
		for _, ch := range d.flights {
			close(ch)
		}
		d.flights = nil
		d.waiters.Wait()
	}
}

// wrong makes an error about a BO.
func (w *work) wrong(i int, err error) error {
	return &Error{Op: w.op, BO: w.plan.BOs[i], Err: err}
}

// fail ends the work because of a BO, unless it has ended. A submission that is
// refused because another one failed before is not the reason that anybody
// wants to hear: the other's error replaces it.
func (w *work) fail(i int, err error) {
	follows := errors.Is(err, unix.ECANCELED)
	w.mu.Lock()
	switch {
	case w.ctx.Err() == nil && w.cause == nil:
		w.cause, w.follows = w.wrong(i, err), follows
	case w.follows && !follows:
		w.cause, w.follows = w.wrong(i, err), false
	}
	cause := w.cause
	w.mu.Unlock()
	w.cancel(cause)
}

// failWith ends the work with an error that names its BO.
func (w *work) failWith(err error) {
	var e *Error
	if !errors.As(err, &e) {
		w.cancel(err)
		return
	}
	w.fail(slices.Index(w.plan.BOs, e.BO), e.Err)
}

// failed returns what ended the work.
func (w *work) failed() error {
	if w.ctx.Err() == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause != nil {
		return w.cause
	}
	return context.Cause(w.ctx)
}

// get returns a BO as the GPU's engines see it.
func (t *target) get() (*drm.Buffer, error) {
	t.once.Do(func() { t.buffer, t.err = t.dev.dev.Import(t.bo.Dmabuf, t.bo.Size) })
	return t.buffer, t.err
}

// launch submits copies and fills of one GPU. What they need of staging lies in
// slot, which comes back when all is done.
func (w *work) launch(pieces []piece, zero bool, slot []byte) {
	ops := make([]drm.Op, len(pieces))
	for i, p := range pieces {
		ops[i] = p.op
	}
	dev := w.targets[pieces[0].bo].dev
	fence, err := dev.dev.Submit(w.ctx, ops...)
	if err != nil {
		w.fail(pieces[0].bo, together(pieces[0].bo, pieces[len(pieces)-1].bo, err))
		if slot != nil {
			w.staging.Put(slot)
		}
		return
	}
	dev.flights[fence.Ring()] <- flight{fence: fence, pieces: pieces, zero: zero, slot: slot}
}

// together says that an error may be about another BO than the first.
func together(bo, last int, err error) error {
	if last != bo {
		return fmt.Errorf("%w (or one of those up to %d, which go together)", err, last)
	}
	return err
}

// land waits for a submission.
func (w *work) land(f flight) {
	err := f.fence.Wait(w.waits)
	if f.slot != nil {
		w.staging.Put(f.slot)
	}
	if err != nil {
		w.fail(f.pieces[0].bo, together(f.pieces[0].bo, f.pieces[len(f.pieces)-1].bo, err))
		return
	}
	w.mu.Lock()
	for _, p := range f.pieces {
		w.count(p.bo, p.op.N, f.zero)
	}
	w.mu.Unlock()
	w.tell()
}

// account counts bytes of a BO that are in place.
func (w *work) account(i int, n uint64) {
	w.mu.Lock()
	w.count(i, n, false)
	w.mu.Unlock()
	w.tell()
}

// count is account's part under mu.
func (w *work) count(i int, n uint64, zero bool) {
	w.done += n
	w.left[i] -= n
	if zero {
		w.zero += n
	}
}

// tell reports progress, when it is time.
func (w *work) tell() {
	if w.opts.Progress == nil {
		return
	}
	w.mu.Lock()
	for !w.telling && (w.done+w.verified == w.total || time.Since(w.told) > progressEvery) &&
		w.done+w.verified > w.last {
		w.telling, w.last = true, w.done+w.verified
		moved := w.last
		w.mu.Unlock()
		w.opts.Progress(moved, w.total)
		w.mu.Lock()
		w.telling, w.told = false, time.Now()
	}
	w.mu.Unlock()
}

const progressEvery = 50 * time.Millisecond

// complete tells whether every byte of every BO is in place and the GPUs are
// well. Preconditions: all has landed.
func (w *work) complete() error {
	if err := w.failed(); err != nil {
		return err
	}
	for i, n := range w.left {
		if n != 0 {
			return w.wrong(i, fmt.Errorf("%d bytes were not moved", n))
		}
	}
	return w.healthy()
}

func (w *work) healthy() error {
	for i, t := range w.targets {
		if i > 0 && w.targets[i-1].dev == t.dev {
			continue
		}
		if err := t.dev.dev.Err(); err != nil {
			return w.wrong(i, err)
		}
	}
	return nil
}

func (w *work) report() Report {
	w.mu.Lock()
	r := Report{BOs: len(w.targets), Bytes: w.done, Zero: w.zero, Verified: w.verified, Duration: time.Since(w.begun)}
	w.mu.Unlock()
	if w.staging != nil {
		r.PeakStaging, r.Staging = w.staging.peakBytes(), int64(len(w.staging.area))
	}
	for _, d := range w.devs {
		if d == nil {
			continue
		}
		s := d.dev.Stats()
		r.Nodes = append(r.Nodes,
			NodeReport{Name: d.name, Engine: d.dev.Kind(), Bytes: s.Bytes, Jobs: s.Jobs, Busy: s.Busy})
	}
	return r
}
