package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// Options of a Feed.
type Options struct {
	Images Images
	// Work is CRIU's work directory, where the socket goes. Not for Takeover.
	Work string
	// Rate bounds what is fetched ahead of demands, in bytes a second; 0 is no bound.
	Rate int64
	// Busy, if set, is prefetch.Options'.
	Busy func() bool
	// Copies is how many are restored at once, and share the processors; 0 is one.
	Copies int
	// Memory bounds the buffers, in bytes. Default 32 MiB. Not for Takeover.
	Memory int64
	// Profile is replayed. Record makes a new one.
	Profile *prefetch.Profile
	Record  bool
	// RecordGPU lets the record of processes that use CUDA go on after their resume, see the package comment.
	RecordGPU bool
	// Inherit leaves to CRIU what processes share with those they were forked from, so that they share it again. CRIU
	// has to see Feed.Inherited then. Not for Takeover.
	Inherit bool
	// Guardian and Successor are the commands of uffd.GuardianOptions. Not for Takeover.
	Guardian, Successor []string
	// Spare is a process of Guardian that has been started already, or nil. Start owns it.
	Spare *uffd.Spawned
	// Early, if set, is called by Start when CRIU may be started, which is before Start returns, and in another
	// goroutine. CRIU must not let its tasks run before Start has returned, and not at all where it fails. Where Early
	// fails, so does Start. Not for Takeover.
	Early  func(Early) error
	Logger *slog.Logger
}

// Validate fills in defaults and refuses options that cannot work.
func (o *Options) Validate() error {
	if o.Images == nil {
		return errors.New("feed: options lack the images")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Memory == 0 {
		o.Memory = 32 << 20
	}
	return nil
}

// Feed serves one restore.
type Feed struct {
	opts      Options
	client    *uffd.Client
	queue     *prefetch.Queue
	supplier  uffd.Supplier
	delayed   *delayedSweep // nil with a profile
	ahead     *ahead        // nil where nothing lies in a bucket
	recorder  *prefetch.Recorder
	packed    *prefetch.Packed // nil without one
	cuda      bool             // the processes use CUDA
	startup   bool             // they read all they have right after their resume
	closeAll  func() error
	names     []string
	total     int64
	inherited map[string][]byte
	closeOnce sync.Once
	closeErr  error

	mu      sync.Mutex
	hotDone time.Time
}

// Status is how far a Feed has come.
type Status struct {
	uffd.Report
	Queue prefetch.Stats
	// TotalBytes is all memory that is brought this way.
	TotalBytes int64
	// HotDone is when the hot set was there. Zero without a profile, or when not yet.
	HotDone time.Time
}

// runBytes gives how much is fetched at a time: the more processors, the more fetch, each into a buffer of its own.
func runBytes(memory int64, processors int) int64 {
	const most, least = 2 << 20, 256 << 10
	buffers := int64(min(max(processors, 8), 16))
	run := int64(most)
	for run > least && memory < buffers*run {
		run /= 2
	}
	return run
}

// Inherited gives the images that CRIU has to see in place of those of the same name, with a link "parent" beside
// them that leads to the image directory itself; none when it may see that as it is.
func (f *Feed) Inherited() map[string][]byte { return f.inherited }

// noSupplier supplies nothing.
type noSupplier struct{}

func (noSupplier) Demand(prefetch.Range, bool) {}
func (noSupplier) Sweep([]prefetch.Range)      {}
func (noSupplier) Refetch([]prefetch.Range)    {}
func (noSupplier) Drain(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Takeover goes on in place of a provider that was killed, with the descriptors that the guardian gave to its
// successor; they are closed.
func Takeover(o Options, wire, setup *os.File) (*Feed, error) {
	if err := o.Validate(); err != nil {
		return nil, errors.Join(err, wire.Close(), setup.Close())
	}
	client, err := uffd.TakeoverFrom(wire, setup, o.Logger)
	if err != nil {
		return nil, err
	}
	far := aheadOf(o)
	f, err := provide(o, client, openContents(o.Images, client.Plan()), far, nil)
	if err != nil {
		if far != nil {
			far.close()
		}
		return nil, errors.Join(err, client.Close())
	}
	return f, nil
}

// contents are what a checkpoint's memory is made of.
type contents struct {
	files []prefetch.File // of the plan
	done  func() error    // closes them; nil without them
	cuda  bool            // the processes use CUDA
	err   error           // what kept it from being there; nothing is open then
}

func openContents(images Images, plan *uffd.Plan) (c contents) {
	if c.cuda, _, c.err = criuimg.CUDA(images.FS()); c.err != nil {
		c.err = fmt.Errorf("read the images: %w", c.err)
		return c
	}
	c.files, c.done, c.err = open(images, plan.Files)
	return c
}

func (c contents) close() error {
	if c.done == nil {
		return nil
	}
	return c.done()
}

// provide makes a Feed of a guardian and what it is to bring, which it closes where it fails. far and recorder may be
// nil; far is the caller's where provide fails.
func provide(o Options, client *uffd.Client, in contents, far *ahead, recorder *prefetch.Recorder) (*Feed, error) {
	if in.err != nil {
		return nil, in.err
	}
	f := &Feed{cuda: in.cuda, startup: in.cuda && !o.RecordGPU, opts: o, client: client, names: client.Plan().Files,
		total: client.Plan().Bytes(), closeAll: in.done, recorder: recorder}
	q := prefetch.Options{
		Files: in.files, Names: f.names, Sink: client, Buffers: client, RunBytes: client.RunBytes(),
		Memory: client.Memory(), Rate: o.Rate, Recorder: f.recorder, Logger: o.Logger,
		Steady: f.startup, Busy: o.Busy,
	}
	q.DemandBytes = min(128<<10, q.RunBytes)
	if o.Profile != nil {
		sizes := make([]int64, len(in.files))
		for i, x := range in.files {
			sizes[i] = x.Size()
		}
		q.Hot = o.Profile.Ranges(f.names, sizes)
		var pieces []index.Chunk
		if f.packed, pieces = openHot(o, f.names); f.packed != nil {
			q.Packed, q.HotAway = f.packed, far != nil && len(pieces) > 0
			f.closeAll = func() error { return errors.Join(in.done(), f.packed.Close()) }
		}
	}
	var err error
	if f.queue, err = prefetch.New(q); err != nil {
		return nil, errors.Join(err, f.closeAll())
	}
	f.supplier = f.queue
	switch {
	case f.recorder != nil && f.startup:
		f.supplier = startupRecorder{f.queue, f.recorder}
	case f.recorder != nil && o.Profile == nil:
		f.delayed = newDelayedSweep(f.queue)
		f.supplier = f.delayed
	}
	if far != nil {
		far.start(in.files, f.supplier, f.queue)
		f.ahead, f.supplier = far, far
	}
	return f, nil
}

// Serve brings memory until all is resident, nobody needs it any more, or something went wrong. When ctx ends the
// guardian finds a successor, unless CRIU has not come yet.
func (f *Feed) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	if f.opts.Profile != nil {
		watch.Go(func() { f.watchHot(ctx) })
	}
	err := f.client.Serve(ctx, f.supplier)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.opts.Profile != nil && f.hotDone.IsZero() {
		f.hotDone = time.Now() // it was the last that came
	}
	return err
}

// CUDA tells that the processes use it.
func (f *Feed) CUDA() bool { return f.cuda }

// Abandon gives the restore up: its tasks are ended, and Serve returns.
func (f *Feed) Abandon() { f.client.Abandon() }

// Retire ends the Feed unless CRIU has come: who would have started it is gone.
func (f *Feed) Retire() { f.client.Retire() }

// watchHot notes when the hot set is done.
func (f *Feed) watchHot(ctx context.Context) {
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for !f.queue.HotDone() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hotDone.IsZero() {
		f.hotDone = time.Now()
	}
}

// Touch notes that CRIU read n bytes of an image from off on.
func (f *Feed) Touch(name string, off, n int64) { touch(f.recorder, name, off, n) }

func touch(recorder *prefetch.Recorder, name string, off, n int64) {
	if recorder != nil {
		recorder.Touch(name, off, n)
	}
}

// Profile gives what was recorded, nil without a recorder.
func (f *Feed) Profile() *prefetch.Profile {
	if f.recorder == nil {
		return nil
	}
	return f.recorder.Profile()
}

// Status tells how far things are.
func (f *Feed) Status() Status {
	f.mu.Lock()
	hot := f.hotDone
	f.mu.Unlock()
	r := f.client.Report()
	r.MissingBytes = missing(r, f.total)
	return Status{Report: r, Queue: f.queue.Stats(), TotalBytes: f.total, HotDone: hot}
}

// missing gives the bytes that are still to come. Until CRIU has handed over all processes the guardian knows of some
// only, or of none: "0 B follow" was told of processes of which everything was still to come.
func missing(r uffd.Report, total int64) int64 {
	if !r.Finished.IsZero() {
		return r.MissingBytes
	}
	return max(r.MissingBytes, total-r.CopiedBytes-r.ZeroBytes)
}

// Close ends the Feed. It is not to be called while Serve runs.
func (f *Feed) Close() error {
	f.closeOnce.Do(func() {
		if f.ahead != nil {
			f.ahead.close()
		}
		if f.delayed != nil {
			f.delayed.close()
		}
		f.closeErr = errors.Join(f.queue.Close(), f.client.Close(), f.closeAll())
	})
	return f.closeErr
}
