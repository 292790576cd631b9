package prefetch

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"
)

// PageSize is the unit of all offsets and lengths given to a Queue.
const PageSize = 4096

// UnitBytes is how finely a Queue keeps track of what it has fetched.
const UnitBytes = PageSize

// Range is a run of bytes of one of a queue's files, page-aligned.
type Range struct {
	File     int
	Off, Len int64
}

// End returns the offset after the range.
func (r Range) End() int64 { return r.Off + r.Len }

// File is a source of bytes. It is read by many goroutines at once.
type File interface {
	// ReadAt fills p or fails. Short reads happen only at the end.
	ReadAt(p []byte, off int64) (int, error)
	Size() int64
	// Data returns the first run in [off, end) that has to be read. What
	// lies before it is zero; start is end when everything is.
	Data(off, end int64) (start, stop int64, err error)
}

// Adviser is implemented by files that can be told what will be read soon.
type Adviser interface {
	Advise(off, n int64)
}

// Locator is implemented by files that can find out ahead of time where their
// bytes are stored.
type Locator interface {
	// Locate does so for a range, in its order, until stop is closed.
	Locate(off, n int64, stop <-chan struct{})
}

// Spanner is implemented by files that are stored in pieces which have to be read
// as a whole. The queue then reads whole pieces at a time.
type Spanner interface {
	// Spans calls yield for the ranges that are stored together, in order.
	Spans(yield func(start, end int64) bool) error
}

// Part is a range and its contents.
type Part struct {
	Range
	Data []byte // nil: the range is zero
}

// Sink takes what the queue brings. Its methods are called by many goroutines
// at once and return when they are done with the bytes.
type Sink interface {
	// Take takes the contents of ranges, all of one run. Their data lies in one
	// buffer of the queue, which leaves it alone until it puts the buffer back;
	// parts is the sink's only until Take returns.
	Take(parts []Part)
	// Fail tells that one page, or what follows the end of a file, cannot be
	// read.
	Fail(r Range, err error)
	// AlreadyDelivered tells that a demanded range had been delivered, at least in part, before it was demanded. A
	// process that has lost it, or could not be given it, may demand it again.
	AlreadyDelivered(r Range)
}

// Buffers lends memory to fetch into. Get blocks until there is some.
type Buffers interface {
	// Get returns a page-aligned buffer of Options.RunBytes.
	Get() []byte
	Put([]byte)
}

// Options tune a Queue. The zero value of a field selects its default.
type Options struct {
	Files []File
	// Names of the files, for the recorder and for logs.
	Names []string
	// Sink takes what is fetched. Without one the queue only serves Read.
	Sink Sink
	// Hot is the hot set, in the order of first touches. It is fetched before
	// the first sweep, and files that are Advisers are told of it at once.
	Hot []Range
	// Packed is the hot set as Pack wrote it for these very files: it is read in
	// place of Hot. The queue does not close it.
	Packed *Packed
	// HotAway: Packed is still on its way, and HotArrived tells how much of it has come.
	HotAway bool
	// Workers bounds the goroutines that fetch hot set and sweep, besides
	// the one for demands. Default: four per CPU, at most 16.
	Workers int
	// RunBytes bounds one read for hot set and sweep. Default 2 MiB.
	RunBytes int64
	// DemandBytes bounds one read for a demand. Default 128 KiB.
	DemandBytes int64
	// Memory bounds the bytes in buffers. Default 64 MiB, at least two runs.
	Memory int64
	// Rate bounds what hot set and sweep fetch, in bytes a second; demands are not held back, but they count. 0 is no
	// bound.
	Rate int64
	// Steady: the sweep does not give way to demands (hold). For who reads all there is, on many threads.
	Steady bool
	// Busy, if set, tells that something else needs the processors, because processes cannot run before it is done. The
	// sweep gives way to it (hold). Busy must not wait.
	Busy func() bool
	// Buffers replaces the queue's own buffers.
	Buffers Buffers
	// Recorder, when set, is told of every demand and every Read.
	Recorder *Recorder
	Logger   *slog.Logger

	// window is how long throughput is measured between two decisions about
	// the number of workers.
	window time.Duration
	// rest is how long what cannot be read is tried again.
	rest time.Duration
}

// Validate fills in defaults and checks the options.
func (o *Options) Validate() error {
	if o.Logger == nil {
		return errors.New("prefetch: options lack a logger")
	}
	if o.Sink == nil {
		o.Sink = noSink{}
	}
	if o.Names == nil && o.Recorder == nil {
		o.Names = make([]string, len(o.Files))
	}
	if len(o.Names) != len(o.Files) {
		return fmt.Errorf("prefetch: %d names for %d files", len(o.Names), len(o.Files))
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.RunBytes, 2<<20)
	def(&o.DemandBytes, 128<<10)
	def(&o.Memory, 64<<20)
	if o.Workers == 0 {
		o.Workers = min(4*runtime.NumCPU(), 16)
	}
	if o.rest == 0 {
		o.rest = restTime
	}
	if o.window == 0 {
		o.window = 50 * time.Millisecond
	}
	if o.RunBytes < UnitBytes || o.RunBytes%UnitBytes != 0 {
		return fmt.Errorf("prefetch: run of %d bytes is not a multiple of %d", o.RunBytes, UnitBytes)
	}
	if o.DemandBytes < UnitBytes || o.DemandBytes > o.RunBytes || o.DemandBytes%UnitBytes != 0 {
		return fmt.Errorf("prefetch: demand of %d bytes is not a multiple of %d up to %d", o.DemandBytes, UnitBytes,
			o.RunBytes)
	}
	if o.Memory < 2*o.RunBytes {
		return fmt.Errorf("prefetch: memory of %d bytes is less than two runs of %d; raise it or lower the run size",
			o.Memory, o.RunBytes)
	}
	if o.Packed != nil && o.RunBytes < blockBytes {
		o.Packed = nil // its blocks do not fit
	}
	if o.Rate < 0 || o.Workers < 1 {
		return errors.New("prefetch: rate and workers must not be negative")
	}
	o.Workers = int(min(int64(o.Workers), o.Memory/o.RunBytes-1))
	return nil
}

type noSink struct{}

func (noSink) Take([]Part)            {}
func (noSink) Fail(Range, error)      {}
func (noSink) AlreadyDelivered(Range) {}
