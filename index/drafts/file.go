package drafts

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/reading"
)

// DraftFile is an open file of a Draft, safe for concurrent use. Sequential writes stream through the splitter;
// writes elsewhere work and store the pages they touch anew.
type DraftFile struct {
	n      *node
	path   string // when it was opened; for messages
	closed bool   // guarded by node.mu
}

func (n *node) open(p string) *DraftFile {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handles++
	n.d.pins.Hold()
	return &DraftFile{n: n, path: p}
}

// remove tells that the draft no longer has the node.
func (n *node) remove() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removed = true
	n.discardIfUnused()
}

// discardIfUnused gives buffers back. Call with mu held.
func (n *node) discardIfUnused() {
	if n.removed && n.handles == 0 && n.content != nil {
		n.content.discard()
		n.content = nil
	}
}

// end ends writing. count: the handles count as open files of the sealed checkpoint from now on.
func (n *node) end(count bool) (handles int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.content != nil {
		_ = n.content.appendPending() // nothing is stored for a draft that has ended, or its removal would miss it
	}
	n.ended = true
	if count {
		n.counted = n.handles
	}
	return n.counted
}

func (n *node) info(p string) reading.FileInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := reading.FileInfo{Path: p, Mode: n.kind | n.perm, ModTime: n.mtime, Target: n.target,
		Size: int64(len(n.target))}
	if n.content != nil {
		i.Size, i.Zero = n.content.size(), n.content.zero
	}
	return i
}

// with runs fn on the content, after a write that was answered early has been appended. Its error names the file.
func (f *DraftFile) with(write bool, fn func(*content) error) error {
	return f.atOnce(write, func(c *content) error {
		if err := c.appendPending(); err != nil {
			return err
		}
		return fn(c)
	})
}

// atOnce is with, but leaves a write that was answered early to fn.
func (f *DraftFile) atOnce(write bool, fn func(*content) error) error {
	if write {
		f.n.d.writes.RLock()
		defer f.n.d.writes.RUnlock()
	}
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	d := f.n.d
	switch {
	case f.n.content == nil:
		return d.fail(fault.Invalid, f.path, "the file was closed")
	case write && f.n.ended:
		return d.over(f.path)
	}
	err := fn(f.n.content)
	if write {
		f.n.mtime = time.Now()
	}
	var e *fault.Error
	if err == nil || errors.As(err, &e) && e.File != "" && e.Checkpoint != "" {
		return err
	}
	return d.at("write", f.path, err)
}

// WriteAt writes p at off; a gap before off is zero. An error may be that of an earlier write that could not be
// stored.
func (f *DraftFile) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > manifest.MaxFileSize-int64(len(p)) {
		return 0, f.n.d.fail(fault.Invalid, f.path, "an offset that no file reaches")
	}
	err := f.with(true, func(c *content) error {
		if err := c.failed(); err != nil {
			return err
		}
		if off == c.size() {
			if f.n.writeBehind(p) {
				return nil
			}
			return c.append(p)
		}
		return c.writeAt(p, off)
	})
	if err != nil {
		return 0, err
	}
	f.n.d.s.Counts.Written.Add(int64(len(p)))
	return len(p), nil
}

// ReadAt reads as io.ReaderAt what was written so far.
func (f *DraftFile) ReadAt(p []byte, off int64) (n int, err error) {
	var end error
	err = f.with(false, func(c *content) error {
		n, err = c.readAt(p, off)
		if errors.Is(err, io.EOF) {
			end, err = err, nil
		}
		return err
	})
	if err == nil {
		err = end
	}
	return n, err
}

// Truncate sets the size; it grows with zeros. Truncate to 0 undoes earlier errors: the file can be written again.
func (f *DraftFile) Truncate(size int64) error {
	if size < 0 || size > manifest.MaxFileSize {
		return f.n.d.fail(fault.Invalid, f.path, "a size that no file has")
	}
	if size == 0 {
		return f.atOnce(true, (*content).clear)
	}
	return f.with(true, func(c *content) error { return c.truncate(size) })
}

// PunchHole zeroes n bytes at off; the size stays.
func (f *DraftFile) PunchHole(off, n int64) error {
	if off < 0 || n < 0 || off > manifest.MaxFileSize {
		return f.n.d.fail(fault.Invalid, f.path, "negative range")
	}
	return f.with(true, func(c *content) error { return c.punch(off, min(off+min(n, manifest.MaxFileSize), c.size())) })
}

// Size gives the size in bytes.
func (f *DraftFile) Size() int64 { return f.Info().Size }

// Info describes the file.
func (f *DraftFile) Info() reading.FileInfo { return f.n.info(f.path) }

// Flush waits until what is full of the file is stored, and reports what that failed with. It does not make it
// durable: Seal does.
func (f *DraftFile) Flush(context.Context) error {
	return f.with(false, (*content).settle)
}

// Close ends the handle. Closing it again does nothing.
func (f *DraftFile) Close() error {
	n := f.n
	n.mu.Lock()
	if f.closed {
		n.mu.Unlock()
		return nil
	}
	f.closed = true
	if n.content != nil {
		_ = n.content.appendPending() // an error stays with the content, and the checkpoint is not sealed
	}
	n.handles--
	n.discardIfUnused()
	counted := n.counted > 0
	if counted {
		n.counted--
	}
	n.mu.Unlock()
	n.d.pins.Release()
	if counted {
		return n.d.s.roots.CloseFile(n.d.r)
	}
	return nil
}
