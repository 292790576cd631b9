package fs

import (
	"syscall"
	"time"
)

// grain is what the size of a file is rounded up to when it is charged.
const grain = 4 << 10

// open counts a handle. The file has its contents from then on.
func (n *scratchNode) open(trunc bool) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if trunc {
		n.base = nil
	}
	if errno := n.settleLocked(); errno != 0 {
		return errno
	}
	if trunc {
		if errno := n.resizeLocked(0); errno != 0 {
			return errno
		}
	}
	n.opens++
	n.p.wake(n)
	return 0
}

func (n *scratchNode) close() {
	n.mu.Lock()
	n.opens--
	n.restLocked()
	n.freeLocked()
	n.mu.Unlock()
	n.p.makeRoom(0)
}

// restLocked books what was written past the server, and lets a file that nobody has open be given up.
func (n *scratchNode) restLocked() {
	if n.opens > 0 || n.file == nil || !n.byProduct {
		return
	}
	if _, blocks, _, err := n.file.stat(); err == nil {
		n.p.give(n.charged - blocks*512)
		n.charged = blocks * 512
	}
	if n.nlink == 1 {
		n.p.rest(n)
	}
}

// settleLocked gives the node its contents: those of the checkpoint for a by-product that a sealed one holds.
func (n *scratchNode) settleLocked() syscall.Errno {
	if n.typ != syscall.S_IFREG {
		return 0
	}
	if n.freed {
		return syscall.ESTALE // given up while the caller was on the way here: the kernel looks again
	}
	if n.file == nil {
		f, err := n.p.newBacking(n.byProduct)
		if err != nil {
			return errnoOf(err)
		}
		n.file = f
		_, _, t, err := f.stat()
		if err != nil {
			return errnoOf(err)
		}
		n.file.told = t
	}
	if n.base == nil {
		return 0
	}
	data, errno := n.base()
	if errno != 0 {
		return errno
	}
	if _, errno := n.writeLocked(data, 0); errno != 0 {
		return errno
	}
	n.base = nil
	if _, _, t, err := n.file.stat(); err == nil {
		n.file.told = t // it is still as old as it was
	}
	return 0
}

func (n *scratchNode) readAt(dest []byte, off int64) (int, syscall.Errno) {
	n.mu.Lock()
	errno := n.settleLocked()
	f := n.file
	n.mu.Unlock()
	if errno != 0 {
		return 0, errno
	}
	k, err := f.readAt(dest, off)
	return k, errnoOf(err)
}

func (n *scratchNode) writeAt(data []byte, off int64) (int, syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errno := n.settleLocked(); errno != 0 {
		return 0, errno
	}
	return n.writeLocked(data, off)
}

func (n *scratchNode) writeLocked(data []byte, off int64) (int, syscall.Errno) {
	if errno := n.chargeLocked(off + int64(len(data))); errno != 0 {
		return 0, errno
	}
	k, err := n.file.writeAt(data, off)
	if k > 0 {
		return k, 0
	}
	return 0, errnoOf(err)
}

// chargeLocked takes what a file of this size may take at most, if that is more than it has taken.
func (n *scratchNode) chargeLocked(size int64) syscall.Errno {
	more := (size+grain-1)/grain*grain - n.charged
	if more <= 0 {
		return 0
	}
	if !n.p.take(more, n.byProduct) {
		return syscall.ENOSPC
	}
	n.charged += more
	return 0
}

// truncate sets the size; a larger one adds a hole.
func (n *scratchNode) truncate(size int64) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if size == 0 {
		n.base = nil
	}
	if errno := n.settleLocked(); errno != 0 {
		return errno
	}
	errno := n.resizeLocked(size)
	n.restLocked()
	return errno
}

func (n *scratchNode) resizeLocked(size int64) syscall.Errno {
	if size > n.p.limit {
		return syscall.EFBIG
	}
	if errno := n.chargeLocked(size); errno != 0 {
		return errno
	}
	if err := n.file.truncate(size); err != nil {
		return errnoOf(err)
	}
	if keep := (size + grain - 1) / grain * grain; keep < n.charged {
		n.p.give(n.charged - keep)
		n.charged = keep
	}
	n.ctime = time.Now()
	return 0
}

// punch makes [off, off+length) zero without changing the size.
func (n *scratchNode) punch(off, length int64) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errno := n.settleLocked(); errno != 0 {
		return errno
	}
	return errnoOf(n.file.punch(off, length))
}

// statLocked gives size, blocks of 512 bytes, and the time of the last change.
func (n *scratchNode) statLocked() (size, blocks int64, mtime time.Time) {
	if n.file == nil || n.base != nil {
		return n.baseSize, 0, n.mtime
	}
	size, blocks, mtime, err := n.file.stat()
	if err != nil || mtime.Equal(n.file.told) { // not written to since somebody said what the time is
		mtime = n.mtime
	}
	return size, blocks, mtime
}
