// Package bench measures how fast a store on a disk takes checkpoints in and gives them out.
//
// It works on a scratch store beside the one that is asked for, and removes it. There are no locks: everything is
// done by the caller's goroutine.
package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Options of one self-benchmark.
type Options struct {
	// Dir is a store or any other folder; what is measured is its disk.
	Dir string
	// Size of the synthetic checkpoint in bytes. Default 512 MiB.
	Size int64
	// Compression of the scratch store. Default auto.
	Compression index.Compression
	// Progress, if set, is told the bytes moved.
	Progress func(wire.Progress)
}

// Result are speeds in bytes per second of file content.
type Result struct {
	Dir      string  `json:"dir"`
	Size     int64   `json:"size"`
	Ingest   float64 `json:"ingest_bytes_per_second"`    // until sealed: on stable storage
	Dedupe   float64 `json:"dedupe_bytes_per_second"`    // the same content again
	ReadCold float64 `json:"read_cold_bytes_per_second"` // payload not in memory
	ReadWarm float64 `json:"read_warm_bytes_per_second"` // payload in the page cache, chunks not in the store's cache
	Stored   int64   `json:"stored"`                     // bytes the first copy took
}

// Run measures a scratch store on the disk of o.Dir and removes it. The content is a quarter zeros, a quarter small
// numbers, and half noise, as in a process with an empty arena, a heap and weights; it is deterministic.
func Run(ctx context.Context, o Options) (res Result, err error) {
	if o.Size == 0 {
		o.Size = 512 << 20
	}
	if o.Size < 4<<20 {
		return res, &index.Error{Class: index.Invalid, Op: "bench", Err: errors.New("less than 4 MiB says nothing")}
	}
	if o.Progress == nil {
		o.Progress = func(wire.Progress) {}
	}
	parent, err := place(o.Dir, o.Size)
	if err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp(parent, ".gpucr-fs-bench-")
	if err != nil {
		return res, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{o: o, dir: filepath.Join(dir, "store"), buf: make([]byte, 1<<20)}
	res = Result{Dir: parent, Size: o.Size}
	return res, b.run(ctx, &res)
}

// place picks a folder on the disk of dir: beside a store rather than in it.
func place(dir string, size int64) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	here, err := diskOf(abs)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	if _, err := os.Stat(filepath.Join(abs, "config.json")); err == nil {
		if there, err := diskOf(filepath.Dir(abs)); err == nil && there == here {
			abs = filepath.Dir(abs)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(abs, &st); err != nil {
		return "", &os.PathError{Op: "statfs", Path: abs, Err: err}
	}
	if free := int64(st.Bavail) * st.Bsize; free < size+1<<30 {
		return "", &index.Error{
			Class: index.NoSpace,
			Op:    "bench",
			File:  abs,
			Err:   fmt.Errorf("%d bytes are free, %d and 1 GiB are needed", free, size),
			Hint:  "give a smaller --size",
		}
	}
	return abs, nil
}

// diskOf gives the number of the device that a path lies on.
func diskOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Dev, nil
}

type bench struct {
	o    Options
	dir  string
	buf  []byte
	done int64
}

func (b *bench) run(ctx context.Context, res *Result) error {
	if err := index.Init(b.dir, index.InitOptions{Compression: b.o.Compression}); err != nil {
		return err
	}
	err := b.with(ctx, func(s *index.Store) (err error) {
		if res.Ingest, err = b.ingest(ctx, s, "one"); err != nil {
			return err
		}
		res.Stored = s.Stats().BytesStored
		res.Dedupe, err = b.ingest(ctx, s, "two")
		return err
	})
	if err != nil {
		return err
	}
	for _, read := range []struct {
		speed *float64
		cold  bool
	}{{&res.ReadCold, true}, {&res.ReadWarm, false}} {
		if read.cold {
			if err := dropCache(b.dir); err != nil {
				return err
			}
		}
		// A store opened anew has no decoded chunks in memory.
		if err := b.with(ctx, func(s *index.Store) (err error) {
			*read.speed, err = b.read(ctx, s)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) with(ctx context.Context, f func(*index.Store) error) error {
	s, err := index.Open(ctx, b.dir, index.Options{})
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close())
}

func (b *bench) moved(n int) {
	b.done += int64(n)
	b.o.Progress(wire.Progress{Done: b.done, Total: 4 * b.o.Size, Unit: "bytes"})
}

func (b *bench) ingest(ctx context.Context, s *index.Store, name string) (float64, error) {
	d, err := s.Create(ctx, name, index.CreateOptions{})
	if err != nil {
		return 0, err
	}
	defer d.Abort()
	f, err := d.Create("pages-1.img", 0o600)
	if err != nil {
		return 0, err
	}
	noise := rand.NewChaCha8([32]byte{1})
	var spent time.Duration
	for off := int64(0); off < b.o.Size; off += int64(len(b.buf)) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		p := b.buf[:min(int64(len(b.buf)), b.o.Size-off)]
		synthesize(p, off, noise)
		start := time.Now()
		if _, err := f.WriteAt(p, off); err != nil {
			return 0, err
		}
		spent += time.Since(start)
		b.moved(len(p))
	}
	start := time.Now()
	if err := f.Close(); err != nil {
		return 0, err
	}
	if _, err := d.Seal(ctx); err != nil {
		return 0, err
	}
	return float64(b.o.Size) / (spent + time.Since(start)).Seconds(), nil
}

// synthesize fills p, which lies at off: blocks of 1 MiB in turn zero, small numbers, noise, noise.
func synthesize(p []byte, off int64, noise *rand.ChaCha8) {
	switch off >> 20 % 4 {
	case 0:
		clear(p)
	case 1:
		for i := 0; i+8 <= len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], noise.Uint64()%1000)
		}
	default:
		noise.Read(p)
	}
}

func (b *bench) read(ctx context.Context, s *index.Store) (float64, error) {
	c, err := s.Checkpoint("one")
	if err != nil {
		return 0, err
	}
	f, err := c.Open("pages-1.img")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	start := time.Now()
	for off := int64(0); off < f.Size(); {
		r, err := f.Read(ctx, off, 4<<20)
		if err != nil {
			return 0, err
		}
		n := r.Len()
		r.Release()
		off += int64(n)
		b.moved(n)
	}
	return float64(f.Size()) / time.Since(start).Seconds(), nil
}

// dropCache asks the kernel to forget the pages of all files below dir, which are clean after sealing.
func dropCache(dir string) error {
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
