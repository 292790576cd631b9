package storage

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Open is of Storage.
func (m *Mem) Open(name string, how How) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, base, node, err := m.find(name)
	f, regular := node.(*memFile)
	fresh := how.mode() == Create || how.mode() == Replace
	switch {
	case err != nil:
	case node == nil && !fresh:
		err = unix.ENOENT
	case node != nil && how.mode() == Create:
		err = unix.EEXIST
	case node != nil && !regular:
		err = unix.EISDIR
	}
	if err != nil {
		return nil, fail("open", name, err)
	}
	switch {
	case node == nil:
		f = &memFile{}
		in.change(dirChange{base: f})
	case how.mode() == Replace && f.now.size > 0:
		f.change(change{sized: true})
	}
	return &memHandle{m: m, f: f, name: name, writable: how.mode() != Read}, nil
}

// change changes a file. Call with Mem.mu held.
func (f *memFile) change(c change) {
	c.apply(&f.now)
	f.since = append(f.since, c)
}

// sync makes durable what was done since the last time. After a dropped sync that is less than what can be read.
func (f *memFile) sync() {
	for _, c := range f.since {
		c.apply(&f.durable)
	}
	f.since = nil
}

// memHandle is an open memFile.
type memHandle struct {
	m        *Mem
	f        *memFile
	name     string
	writable bool
	closed   atomic.Bool
}

func (h *memHandle) Name() string { return h.name }

// with runs fn with the file system locked.
func (h *memHandle) with(op string, write bool, fn func(f *memFile) error) error {
	switch {
	case h.closed.Load():
		return fail(op, h.name, unix.EBADF)
	case write && !h.writable:
		return fail(op, h.name, unix.EBADF)
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return fn(h.f)
}

func (h *memHandle) Close() error {
	if h.closed.Swap(true) {
		return fail("close", h.name, unix.EBADF)
	}
	return nil
}

func (h *memHandle) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fail("read", h.name, unix.EINVAL)
	}
	err = h.with("read", false, func(f *memFile) (err error) {
		n, err = f.now.read(p, off)
		return err
	})
	return n, err
}

func (h *memHandle) Readv(bufs [][]byte, off int64, _ bool) error {
	return h.with("read", false, func(f *memFile) error {
		for _, b := range bufs {
			if len(b) == 0 {
				continue
			}
			if _, err := f.now.read(b, off); err != nil {
				return io.ErrUnexpectedEOF
			}
			off += int64(len(b))
		}
		return nil
	})
}

func (h *memHandle) WriteAt(p []byte, off int64) (int, error) {
	if err := h.Writev([][]byte{p}, off, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (h *memHandle) Writev(bufs [][]byte, off int64, _ bool) error {
	if off < 0 {
		return fail("write", h.name, unix.EINVAL)
	}
	return h.with("write", true, func(f *memFile) error {
		if data := bytes.Join(bufs, nil); len(data) > 0 {
			f.change(change{data: data, off: off})
		}
		return nil
	})
}

func (h *memHandle) Sync() error {
	return h.with("sync", false, func(f *memFile) error {
		f.sync()
		return nil
	})
}

// drop loses what a sync would have covered: some of it is durable, the rest never will be. With forget it can't be
// read either, as when the kernel has given the pages up.
func (h *memHandle) drop(seed uint64, forget bool) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	survive(&h.f.durable, h.f.since, rand.New(rand.NewPCG(seed, 0)))
	h.f.since = nil
	if forget {
		h.f.now = h.f.durable.clone()
	}
}

func (h *memHandle) Truncate(size int64) error {
	if size < 0 {
		return fail("truncate", h.name, unix.EINVAL)
	}
	return h.with("truncate", true, func(f *memFile) error {
		f.change(change{sized: true, size: size})
		return nil
	})
}

func (h *memHandle) Allocate(off, n int64) error {
	if off < 0 || n <= 0 {
		return fail("allocate", h.name, unix.EINVAL)
	}
	return h.with("allocate", true, func(f *memFile) error {
		f.change(change{off: off, room: n})
		return nil
	})
}

func (h *memHandle) Punch(off, n int64) error {
	if off < 0 || n <= 0 {
		return fail("punch hole", h.name, unix.EINVAL)
	}
	return h.with("punch hole", true, func(f *memFile) error {
		f.change(change{off: off, hole: n})
		return nil
	})
}

func (h *memHandle) Size() (size int64, err error) {
	err = h.with("stat", false, func(f *memFile) error {
		size = f.now.size
		return nil
	})
	return size, err
}

func (h *memHandle) Allocated(off, n int64) (sum int64, err error) {
	err = h.with("seek", false, func(f *memFile) error {
		sum = f.now.allocated(off, n)
		return nil
	})
	return sum, err
}

func (h *memHandle) WillNeed(int64, int64) {}

// Forget gives up what of files is neither durable nor waiting to be: what failed syncs were to cover can't be read any
// more.
func (m *Mem) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.root.forget()
}

func (d *memDir) forget() {
	for _, node := range d.now {
		switch n := node.(type) {
		case *memDir:
			n.forget()
		case *memFile:
			n.now = n.durable.clone()
			for _, c := range n.since {
				c.apply(&n.now)
			}
		}
	}
}
