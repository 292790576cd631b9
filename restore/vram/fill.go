package vram

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/prefetch"
)

const (
	// minZero is the shortest run of zeros that is taken out of a BO: a
	// shorter one is cheaper to copy along than to submit by itself.
	minZero = 256 << 10
	// minLook is the least of a plain file that is searched for zeros.
	minLook = 2 << 20
	// maxFill is the most that one submission fills, so that fills of one BO
	// do not keep the copies of others waiting for long.
	maxFill = 16 << 20
	// maxImports is how many BOs are imported at once.
	maxImports = 4
)

// Fill puts the contents of a plan's BOs in place and verifies as
// Options.Verify says. Errors that concern a BO are an *Error. The report is of
// what was done, with an error too.
func Fill(ctx context.Context, src Source, plan Plan, opts Options) (Report, error) {
	w, err := begin(ctx, "fill", plan, opts)
	if err != nil {
		return Report{}, err
	}
	files, err := openFiles(w, src)
	var rep Report
	if err == nil {
		if w.opts.Verify != VerifyNone {
			w.expect(files)
		}
		err = w.fill(files)
		rep = w.report()
	}
	if err == nil && w.opts.Verify != VerifyNone {
		start := time.Now()
		w.op = "verify"
		err = w.verify(files)
		rep.Verified, rep.Verification = w.verified, time.Since(start)
	}
	return rep, w.end(first(err, closeFiles(files)))
}

// first returns the first error: what follows a failure is seldom news.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stretch is a part of a BO: zero, or to be read.
type stretch struct {
	off, n int64
	zero   bool
}

// imageFile is an open image file.
type imageFile struct {
	File
	// cuts are where what is stored together begins or ends, ascending; nil
	// when nothing is.
	cuts []int64
}

// openFiles opens what the BOs are in, each file once, and looks where they
// are zero.
func openFiles(w *work, src Source) ([]*contents, error) {
	open := map[string]*imageFile{}
	last := map[*imageFile]*contents{}
	var out []*contents
	for i, t := range w.targets {
		f := open[t.bo.File]
		if f == nil {
			file, err := src.Open(t.bo.File)
			if err != nil {
				return out, w.wrong(i, err)
			}
			f = &imageFile{File: file, cuts: cuts(file)}
			open[t.bo.File] = f
		}
		c := last[f]
		if c == nil || !c.join(i) {
			c = &contents{w: w, bos: []int{i}, starts: []int64{0}, file: f, off: t.bo.Off, size: int64(t.bo.Size)}
			out, last[f] = append(out, c), c
		}
		if c.off > f.Size()-c.size {
			return out, w.wrong(i, fmt.Errorf("image %s ends at byte %d, its contents at %d", t.bo.File, f.Size(),
				c.off+c.size))
		}
	}
	for _, c := range out {
		c.look()
	}
	return out, nil
}

// cuts lists where what is stored together in a file begins or ends.
func cuts(f File) (out []int64) {
	s, ok := f.(prefetch.Spanner)
	if !ok {
		return nil
	}
	err := s.Spans(func(start, end int64) bool {
		if n := len(out); n == 0 || out[n-1] < start {
			out = append(out, start)
		}
		out = append(out, end)
		return true
	})
	if err != nil {
		return nil // reading will tell
	}
	return out
}

func closeFiles(files []*contents) error {
	closed := map[*imageFile]bool{}
	var errs []error
	for _, c := range files {
		if !closed[c.file] {
			closed[c.file] = true
			errs = append(errs, c.file.Close())
		}
	}
	return errors.Join(errs...)
}

// filler is the Sink of the queue. A slot's operations are those of one run;
// they are submitted together when the queue puts the slot back.
type filler struct {
	w     *work
	files []*contents
	slots [][]piece // of the slot of that number, owned by the one who has the slot
}

func (f *filler) Get() []byte { return f.w.staging.Get() }

// Take notes where the parts of a slot have to go. What contents.Data tells the
// queue to be zero, fillZeros fills.
func (f *filler) Take(parts []prefetch.Part) {
	for _, p := range parts {
		if p.Data != nil {
			f.take(p.Range, p.Data)
		}
	}
}

func (f *filler) take(r prefetch.Range, data []byte) {
	c := f.files[r.File]
	k := f.w.staging.number(data)
	slot, src, err := c.dev().slot(data)
	if err != nil {
		f.w.failWith(f.w.wrong(c.bos[0], err))
		return
	}
	c.note(r.Off, data)
	err = c.pieces(r.Off, int64(len(data)), func(bo int, buf *drm.Buffer, at, from, n int64) {
		p := piece{bo, drm.Op{Dst: buf, DstOff: uint64(at), Src: slot, SrcOff: src + uint64(from),
			N: uint64(n)}}
		if i := len(f.slots[k]) - 1; i >= 0 && f.slots[k][i].extend(p) {
			return
		}
		f.slots[k] = append(f.slots[k], p)
	})
	if err != nil {
		f.w.failWith(err)
	}
}

// extend adds what follows a piece, in its BO and in staging memory.
func (p *piece) extend(next piece) bool {
	if p.bo != next.bo || p.op.SrcOff+p.op.N != next.op.SrcOff || p.op.DstOff+p.op.N != next.op.DstOff {
		return false
	}
	p.op.N += next.op.N
	return true
}

// Put submits what was read into a slot.
func (f *filler) Put(slot []byte) {
	k := f.w.staging.number(slot)
	pieces := f.slots[k]
	f.slots[k] = nil // they go with the submission
	if len(pieces) == 0 || f.w.failed() != nil {
		f.w.staging.Put(slot)
		return
	}
	f.w.launch(pieces, false, slot)
}

// Fail ends the work, if the failed read has not.
func (f *filler) Fail(r prefetch.Range, err error) {
	c := f.files[r.File]
	bo := c.bos[c.at(r.Off)]
	f.w.fail(bo, fmt.Errorf("image %s, byte %d: %w", f.w.plan.BOs[bo].File, c.off+r.Off, err))
}

// AlreadyDelivered is not called: nothing is demanded.
func (f *filler) AlreadyDelivered(prefetch.Range) {}

// fillZero fills a part of contents, and reports whether the work goes on.
func (w *work) fillZero(c *contents, off, n int64) bool {
	for n > 0 && w.failed() == nil {
		k := min(n, maxFill)
		var pieces []piece
		err := c.pieces(off, k, func(bo int, buf *drm.Buffer, at, _, n int64) {
			pieces = append(pieces, piece{bo, drm.Op{Dst: buf, DstOff: uint64(at), N: uint64(n)}})
		})
		if err != nil {
			w.failWith(err)
			return false
		}
		w.launch(pieces, true, nil)
		off, n = off+k, n-k
	}
	return w.failed() == nil
}

// warnings is a handler without errors: these are told once, by fail.
type warnings struct{ slog.Handler }

func (h warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l < slog.LevelError && h.Handler.Enabled(ctx, l)
}

// fill moves everything.
func (w *work) fill(files []*contents) error {
	f := &filler{w: w, files: files, slots: make([][]piece, w.staging.slots())}
	run := int64(w.staging.slot)
	opts := prefetch.Options{
		Sink: f, Buffers: f, Workers: w.opts.Workers, RunBytes: run, Memory: int64(len(w.staging.area)),
		DemandBytes: min(run, 128<<10),
		Hot:         w.hot(files),
		Logger:      slog.New(warnings{w.opts.Logger.Handler()}),
	}
	for _, c := range files {
		opts.Files, opts.Names = append(opts.Files, c), append(opts.Names, w.plan.BOs[c.bos[0]].File)
	}
	q, err := prefetch.New(opts)
	if err != nil {
		return err
	}
	ahead := w.importAhead()
	var zeros sync.WaitGroup
	for _, d := range w.devs {
		if d != nil {
			zeros.Go(func() { w.fillZeros(d, files) })
		}
	}
	q.Sweep(w.sweep(files, run))
	// Whatever ends the wait early is in w.ctx.
	_ = q.Drain(w.ctx)
	err = q.Close()
	zeros.Wait()
	ahead.Wait()
	w.settle()
	return first(w.complete(), err)
}

// importAhead imports BOs beside the reading of images, in their order: two requests
// for each, whose waits add up where there are thousands.
func (w *work) importAhead() *sync.WaitGroup {
	var importers sync.WaitGroup
	var next atomic.Int64
	for range min(maxImports, len(w.targets)) {
		importers.Go(func() {
			for w.ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(w.targets) {
					return
				}
				if _, err := w.targets[i].get(); err != nil {
					w.fail(i, err)
				}
			}
		})
	}
	return &importers
}

func (w *work) fillZeros(d *device, files []*contents) {
	for _, c := range files {
		if c.dev() != d {
			continue
		}
		for _, s := range c.parts {
			if s.zero && !w.fillZero(c, s.off, s.n) {
				return
			}
		}
	}
}

// sweep lists the data of all BOs, in their order on each GPU, GPUs taking
// turns.
func (w *work) sweep(files []*contents, run int64) []prefetch.Range {
	lists := map[*device][]prefetch.Range{}
	for i, c := range files {
		d := c.dev()
		for _, s := range c.parts {
			for off := s.off; off < s.off+s.n && !s.zero; off += run {
				lists[d] = append(lists[d], prefetch.Range{File: i, Off: off, Len: min(run, s.off+s.n-off)})
			}
		}
	}
	var out []prefetch.Range
	for k := 0; len(lists) > 0; k++ {
		for _, d := range w.devs {
			switch l := lists[d]; {
			case d == nil || l == nil:
			case k < len(l):
				out = append(out, l[k])
			default:
				delete(lists, d)
			}
		}
	}
	return out
}

// hot turns the profile, which is about files, into ranges of BOs.
func (w *work) hot(files []*contents) []prefetch.Range {
	if w.opts.Profile == nil {
		return nil
	}
	byName := map[string][]int{}
	var names []string
	var sizes []int64
	for i, c := range files {
		name := w.plan.BOs[c.bos[0]].File
		if _, ok := byName[name]; !ok {
			names, sizes = append(names, name), append(sizes, c.file.Size())
		}
		byName[name] = append(byName[name], i)
	}
	var out []prefetch.Range
	for _, r := range w.opts.Profile.Ranges(names, sizes) {
		for _, i := range byName[names[r.File]] {
			c := files[i]
			off, end := max(r.Off-c.off, 0), min(r.End()-c.off, c.size)
			for off < end {
				start, stop, _ := c.Data(off, end) // it knows
				if start < stop {
					out = append(out, prefetch.Range{File: i, Off: start, Len: stop - start})
				}
				off = stop
			}
		}
	}
	return out
}
