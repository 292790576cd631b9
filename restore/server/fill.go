package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/prefetch"
)

const (
	// minZero is the shortest run of zeros that is taken out of a BO: a
	// shorter one is cheaper to copy along than to submit by itself.
	minZero = 256 << 10
	// maxFill is the most that one submission fills, so that fills of one BO
	// do not keep the copies of others waiting for long.
	maxFill = 16 << 20
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

// contents is the part of an image file that a BO is in, as a file of a
// prefetch.Queue.
type contents struct {
	w    *work
	bo   int
	file *imageFile
	off  int64
	size int64
	// parts cover the BO in order, zeros and data alternating.
	parts []stretch
}

// openFiles opens what the BOs are in, each file once, and looks where they
// are zero.
func openFiles(w *work, src Source) ([]*contents, error) {
	open := map[string]*imageFile{}
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
		c := &contents{w: w, bo: i, file: f, off: t.bo.Off, size: int64(t.bo.Size)}
		out = append(out, c)
		if c.off > f.Size()-c.size {
			return out, w.wrong(i, fmt.Errorf("image %s ends at byte %d, its contents at %d", t.bo.File, f.Size(),
				c.off+c.size))
		}
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

// look finds the runs of zeros that are worth a fill. They begin and end at
// units of the queue, or at the end of the BO.
func (c *contents) look() {
	for off := int64(0); off < c.size; {
		start, stop, err := c.file.Data(c.off+off, c.off+c.size)
		if err != nil || start < c.off+off || stop > c.off+c.size || start < c.off+c.size && stop <= start {
			// Reading will tell.
			start, stop = c.off+off, c.off+c.size
		}
		start, stop = start-c.off, max(start, stop)-c.off
		c.zeros(off, start)
		off = stop
	}
	if end := c.covered(); end < c.size {
		c.parts = append(c.parts, stretch{off: end, n: c.size - end})
	}
}

func (c *contents) covered() int64 {
	if len(c.parts) == 0 {
		return 0
	}
	last := c.parts[len(c.parts)-1]
	return last.off + last.n
}

// zeros notes that [start, end) is zero, and that what lies before is data.
func (c *contents) zeros(start, end int64) {
	start = (start + prefetch.UnitBytes - 1) / prefetch.UnitBytes * prefetch.UnitBytes
	if end < c.size {
		end = end / prefetch.UnitBytes * prefetch.UnitBytes
	}
	if end-start < minZero && end-start != c.size {
		return
	}
	if before := c.covered(); before < start {
		c.parts = append(c.parts, stretch{off: before, n: start - before})
	}
	c.parts = append(c.parts, stretch{off: start, n: end - start, zero: true})
}

func (c *contents) Size() int64 { return c.size }

// ReadAt reads a part of the BO. The first failure ends the work.
func (c *contents) ReadAt(p []byte, off int64) (int, error) {
	if err := c.w.failed(); err != nil {
		return 0, err
	}
	n, err := c.file.ReadAt(p, c.off+off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.w.fail(c.bo, fmt.Errorf("image %s, byte %d: %w", c.w.plan.BOs[c.bo].File, c.off+off+int64(n), err))
	return n, err
}

// Data gives the parts of the BO that are not filled with zeros.
func (c *contents) Data(off, end int64) (start, stop int64, err error) {
	for _, s := range c.from(off) {
		if s.off >= end {
			break
		}
		if !s.zero {
			return max(off, s.off), min(end, s.off+s.n), nil
		}
	}
	return end, end, nil
}

// Spans gives what is stored together, within the BO.
func (c *contents) Spans(yield func(start, end int64) bool) error {
	if c.file.cuts == nil {
		return errors.ErrUnsupported
	}
	i, _ := slices.BinarySearch(c.file.cuts, c.off)
	start := int64(0)
	for ; i < len(c.file.cuts) && start < c.size; i++ {
		end := min(c.file.cuts[i]-c.off, c.size)
		if end > start && !yield(start, end) {
			break
		}
		start = end
	}
	return nil
}

// Locate has the image file look up where a part of the BO is stored.
func (c *contents) Locate(off, n int64, stop <-chan struct{}) {
	if l, ok := c.file.File.(prefetch.Locator); ok {
		l.Locate(c.off+off, n, stop)
	}
}

// from returns the parts that end after off.
func (c *contents) from(off int64) []stretch {
	i, _ := slices.BinarySearchFunc(c.parts, off, func(s stretch, off int64) int {
		if s.off+s.n <= off {
			return -1
		}
		return 1
	})
	return c.parts[i:]
}

// filler is the Sink of the queue. A slot's operations are those of one run,
// and so of one BO; they are submitted together when the queue puts the slot
// back.
type filler struct {
	w     *work
	slots [][]drm.Op // of the slot of that number, owned by who has the slot
	bos   []int      // the BO they are for
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
	t := f.w.targets[r.File]
	buf, err := t.get()
	if err != nil {
		f.w.fail(r.File, err)
		return
	}
	k := f.w.staging.number(data)
	at := f.w.staging.offset(data)
	ops := f.slots[k]
	f.bos[k] = r.File
	if n := len(ops); n > 0 && ops[n-1].SrcOff+ops[n-1].N == at && ops[n-1].DstOff+ops[n-1].N == uint64(r.Off) {
		ops[n-1].N += uint64(len(data))
		return
	}
	f.slots[k] = append(ops,
		drm.Op{Dst: buf, DstOff: uint64(r.Off), Src: t.dev.staging, SrcOff: at, N: uint64(len(data))})
}

// Put submits what was read into a slot.
func (f *filler) Put(slot []byte) {
	k := f.w.staging.number(slot)
	ops := f.slots[k]
	f.slots[k] = ops[:0]
	if len(ops) == 0 || f.w.failed() != nil {
		f.w.staging.Put(slot)
		return
	}
	f.w.launch(f.bos[k], ops, false, slot)
}

// Fail ends the work, if the failed read has not.
func (f *filler) Fail(r prefetch.Range, err error) { f.w.fail(r.File, err) }

// Had is not called: nothing is demanded.
func (f *filler) Had(prefetch.Range) {}

// fillZero fills a part of a BO, and reports whether the work goes on.
func (w *work) fillZero(i int, off, n int64) bool {
	buf, err := w.targets[i].get()
	if err != nil {
		w.fail(i, err)
		return false
	}
	for n > 0 && w.failed() == nil {
		k := min(n, maxFill)
		w.launch(i, []drm.Op{{Dst: buf, DstOff: uint64(off), N: uint64(k)}}, true, nil)
		off, n = off+k, n-k
	}
	return w.failed() == nil
}

// fill moves everything.
func (w *work) fill(files []*contents) error {
	f := &filler{w: w, slots: make([][]drm.Op, w.staging.slots()), bos: make([]int, w.staging.slots())}
	run := int64(w.staging.slot)
	opts := prefetch.Options{
		Sink: f, Buffers: f, Workers: w.opts.Workers, RunBytes: run, Memory: int64(len(w.staging.area)),
		DemandBytes: min(run, 128<<10),
		Hot:         w.hot(files), Names: make([]string, len(files)),
		Logger: slog.New(slog.DiscardHandler), // an error is told once, by fail
	}
	for _, c := range files {
		opts.Files = append(opts.Files, c)
	}
	q, err := prefetch.New(opts)
	if err != nil {
		return err
	}
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
	w.settle()
	return first(w.complete(), err)
}

func (w *work) fillZeros(d *device, files []*contents) {
	for _, c := range files {
		if w.targets[c.bo].dev != d {
			continue
		}
		for _, s := range c.parts {
			if s.zero && !w.fillZero(c.bo, s.off, s.n) {
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
		d := w.targets[c.bo].dev
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
		name := w.plan.BOs[c.bo].File
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
