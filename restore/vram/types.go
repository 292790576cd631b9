package vram

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// Node is a render node to work on.
type Node struct {
	// File is an open of the render node that nobody else submits to. It
	// stays the caller's.
	File *os.File
	// Name is for messages, e.g. "renderD128".
	Name string
}

// BO is one buffer object and the place of its contents.
type BO struct {
	// PID, GPU (the id that the process knows) and Index (in its image) name
	// the BO in messages.
	PID   int    `json:"pid"`
	GPU   uint32 `json:"gpu"`
	Index int    `json:"index"`
	Kind  string `json:"kind"` // "vram" or "gtt"
	VA    uint64 `json:"va"`   // in the process, for messages
	Size  uint64 `json:"size"` // bytes
	// Node is the index in the plan of the render node that owns the memory.
	Node int `json:"node"`
	// Dmabuf is the BO itself. It stays the caller's.
	Dmabuf *os.File `json:"-"`
	// File is the name of the image file that holds the contents from byte
	// Off on.
	File string `json:"file"`
	Off  int64  `json:"off"`
}

// Plan is a piece of work: BOs of any number of processes, on any number of
// GPUs.
type Plan struct {
	Nodes []Node
	BOs   []BO
}

// Source opens image files. [Dir] and [Checkpoint] are sources.
type Source interface {
	// Open opens an image file by name.
	Open(name string) (File, error)
}

// File is an open image file.
type File interface {
	prefetch.File
	io.Closer
}

// Sink takes the image files of a dump. [DirSink] is one.
type Sink interface {
	// Create makes an image file of size bytes. It is written front to back
	// and closed; an error of Close fails the dump.
	Create(name string, size int64) (io.WriteCloser, error)
}

// Mode says how much of the BOs is read back and compared.
type Mode int

// Modes of verification.
const (
	VerifySample Mode = iota // four places of each BO, the first and last page of a small one
	VerifyNone
	VerifyAll
)

var modeNames = []string{"sample", "none", "all"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode reads "sample" (or ""), "none" or "all".
func ParseMode(s string) (Mode, error) {
	if s == "" {
		return VerifySample, nil
	}
	for i, n := range modeNames {
		if n == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("verification %q is none of sample, none, all", s)
}

// Options tune the work. The zero value of a field selects its default.
type Options struct {
	// Staging bounds the staging memory in bytes, of all GPUs together.
	// Default 64 MiB, at least [MinStaging].
	Staging int64
	// MaxBuffer lowers Staging further, though not below MinStaging; it is
	// KFD_MAX_BUFFER_SIZE. 0 is no bound, below a page nothing can be done.
	MaxBuffer int64
	// Workers bounds the goroutines that read image files. Default: that of
	// prefetch.
	Workers int
	// Engine is how bytes get to the GPU. Default: SDMA where it works, else
	// by mapping BOs.
	Engine drm.Kind
	// Verify is how much is read back and compared.
	Verify Mode
	// Profile orders the fill.
	Profile *prefetch.Profile
	// Progress, when set, is told now and then how many bytes of all have been
	// moved; those that are read back count again. It is called by one
	// goroutine at a time, and at the end.
	Progress func(done, total uint64)
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
}

// Bounds of Options.Staging. The least is two pages: one is read while the other is
// on its way.
const (
	DefaultStaging = 64 << 20
	MinStaging     = 2 * pageBytes
	pageBytes      = 4096
)

// Validate fills in defaults.
func (o *Options) Validate() error {
	if o.Staging == 0 {
		o.Staging = DefaultStaging
	}
	if o.Workers < 0 || o.MaxBuffer < 0 {
		return errors.New("workers and buffer size must not be negative")
	}
	if o.MaxBuffer > 0 {
		if o.MaxBuffer < pageBytes {
			return fmt.Errorf("buffers of %d bytes take no page; give at least %d (KFD_MAX_BUFFER_SIZE)", o.MaxBuffer,
				pageBytes)
		}
		o.Staging = min(o.Staging, max(o.MaxBuffer, MinStaging))
	}
	if o.Staging < MinStaging {
		return fmt.Errorf("staging memory of %d bytes is too little; give at least %d", o.Staging, MinStaging)
	}
	if o.Verify < VerifySample || o.Verify > VerifyAll {
		return fmt.Errorf("verification mode %d does not exist", o.Verify)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Report is what was done.
type Report struct {
	BOs   int    `json:"bos"`
	Bytes uint64 `json:"bytes"` // of all BOs
	// Zero of these were filled without being read.
	Zero     uint64        `json:"zero_bytes"`
	Duration time.Duration `json:"duration_ns"` // without verification
	// PeakStaging is how many bytes of staging were in use at once, at most.
	PeakStaging int64        `json:"peak_staging"`
	Staging     int64        `json:"staging"` // its bound
	Nodes       []NodeReport `json:"nodes"`
	// Verified bytes were read back and compared, in Verification.
	Verified     uint64        `json:"verified_bytes"`
	Verification time.Duration `json:"verification_ns"`
}

// NodeReport is one GPU's part.
type NodeReport struct {
	Name   string   `json:"name"`
	Engine drm.Kind `json:"engine"`
	Bytes  uint64   `json:"bytes"`
	Jobs   uint64   `json:"jobs"`
	// Busy is how long the GPU had at least one submission to work on.
	Busy time.Duration `json:"busy_ns"`
}

// BusyShare is the part of the time for which the DMA engines had work, the
// mean of all nodes that took part.
func (r Report) BusyShare() float64 {
	var busy time.Duration
	n := 0
	for _, d := range r.Nodes {
		if d.Jobs > 0 {
			busy += d.Busy
			n++
		}
	}
	if n == 0 || r.Duration == 0 {
		return 0
	}
	return busy.Seconds() / float64(n) / r.Duration.Seconds()
}

func (r Report) String() string {
	return fmt.Sprintf("%d buffer objects, %d bytes filled in %v, DMA busy %.0f %%, %d bytes read back",
		r.BOs, r.Bytes, r.Duration.Round(time.Millisecond), 100*r.BusyShare(), r.Verified)
}

// Error is a failure that concerns one BO.
type Error struct {
	Op  string // "fill", "read" or "verify"
	BO  BO
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s buffer object %d of process %d on gpu %#x (%d bytes at %#x): %v",
		e.Op, e.BO.Kind, e.BO.Index, e.BO.PID, e.BO.GPU, e.BO.Size, e.BO.VA, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
