package fs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// blockSize is the grain in which scratch files take memory. CRIU's log grows in steps of some 60 bytes, so it must not be large.
const blockSize = 16 << 10

// pool bounds the memory of all scratch files of a mount and numbers them.
type pool struct {
	limit int64
	used  atomic.Int64
	next  atomic.Uint64
}

// nodeCost is charged for a scratch node's own memory, so that many empty files meet the bound too.
const nodeCost = 512

// take reserves n bytes; false when that exceeds the bound.
func (p *pool) take(n int64) bool {
	if p.used.Add(n) > p.limit {
		p.used.Add(-n)
		return false
	}
	return true
}

func (p *pool) give(n int64) { p.used.Add(-n) }

// scratchNode is a file, directory, symlink, socket or fifo that lives in memory.
type scratchNode struct {
	p   *pool
	ino uint64
	typ uint32 // S_IFMT bits; immutable

	mu                  sync.Mutex
	perm                uint32 // 07777 bits
	uid, gid            uint32
	atime, mtime, ctime time.Time
	nlink               uint32
	rdev                uint32
	opens               int // handles; the memory of an unlinked file goes with its last one
	target              string
	size                int64
	blocks              [][]byte // of blockSize bytes; nil is a hole
	base                func() ([]byte, syscall.Errno)
	children            map[string]*scratchNode // of a directory
}

func (p *pool) newNode(typ, perm, uid, gid uint32) (*scratchNode, syscall.Errno) {
	if !p.take(nodeCost) {
		return nil, syscall.ENOSPC
	}
	now := time.Now()
	n := &scratchNode{p: p, ino: inoScratch | p.next.Add(1), typ: typ, perm: perm & 0o7777, uid: uid, gid: gid, atime: now, mtime: now, ctime: now, nlink: 1}
	if typ == syscall.S_IFDIR {
		n.children = map[string]*scratchNode{}
		n.nlink = 2
	}
	return n, 0
}

func (n *scratchNode) child(name string) *scratchNode {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.children[name]
}

// add links ch as name; EEXIST if the name is taken, ENOENT if the directory was removed.
func (n *scratchNode) add(name string, ch *scratchNode) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nlink == 0 {
		return syscall.ENOENT
	}
	if n.children[name] != nil {
		return syscall.EEXIST
	}
	n.children[name] = ch
	n.touchLocked()
	return 0
}

// remove unlinks name. dir says which of unlink and rmdir it is.
func (n *scratchNode) remove(name string, dir bool) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	ch := n.children[name]
	switch {
	case ch == nil:
		return syscall.ENOENT
	case dir && ch.typ != syscall.S_IFDIR:
		return syscall.ENOTDIR
	case !dir && ch.typ == syscall.S_IFDIR:
		return syscall.EISDIR
	}
	if errno := ch.unlink(); errno != 0 {
		return errno
	}
	delete(n.children, name)
	n.touchLocked()
	return 0
}

// forget takes name out of the directory without unlinking what it named.
func (n *scratchNode) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.children, name)
	n.touchLocked()
}

// unlink takes one name off n.
func (n *scratchNode) unlink() syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.typ == syscall.S_IFDIR {
		if len(n.children) > 0 {
			return syscall.ENOTEMPTY
		}
		n.nlink = 0
	} else {
		n.nlink--
	}
	n.ctime = time.Now()
	n.freeLocked()
	return 0
}

// freeLocked gives memory back when neither name nor handle is left.
func (n *scratchNode) freeLocked() {
	if n.nlink > 0 || n.opens > 0 {
		return
	}
	n.truncateLocked(0)
	n.p.give(nodeCost)
}

func (n *scratchNode) touchLocked() {
	n.mtime = time.Now()
	n.ctime = n.mtime
}

func (n *scratchNode) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.children) == 0
}

// list gives the names of a directory, sorted.
func (n *scratchNode) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make([]string, 0, len(n.children))
	for name := range n.children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (n *scratchNode) open(trunc bool) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if trunc {
		n.base = nil
		n.truncateLocked(0)
		n.touchLocked()
	}
	n.opens++
	return 0
}

func (n *scratchNode) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opens--
	n.freeLocked()
}

// settle brings in the content that a by-product of a sealed checkpoint starts with.
func (n *scratchNode) settleLocked() syscall.Errno {
	if n.base == nil {
		return 0
	}
	data, errno := n.base()
	if errno != 0 {
		return errno
	}
	n.base = nil
	n.size = 0
	_, errno = n.writeLocked(data, 0)
	return errno
}

func (n *scratchNode) readAt(dest []byte, off int64) (int, syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errno := n.settleLocked(); errno != 0 {
		return 0, errno
	}
	if off >= n.size {
		return 0, 0
	}
	dest = dest[:min(int64(len(dest)), n.size-off)]
	for done := 0; done < len(dest); {
		at := off + int64(done)
		part := dest[done:min(len(dest), done+blockSize-int(at%blockSize))]
		if b := n.blocks[at/blockSize]; b != nil {
			copy(part, b[at%blockSize:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(dest), 0
}

func (n *scratchNode) writeAt(data []byte, off int64) (int, syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errno := n.settleLocked(); errno != 0 {
		return 0, errno
	}
	n.touchLocked()
	return n.writeLocked(data, off)
}

func (n *scratchNode) writeLocked(data []byte, off int64) (int, syscall.Errno) {
	if off+int64(len(data)) > n.p.limit {
		return 0, syscall.ENOSPC
	}
	n.growLocked(off + int64(len(data)))
	done := 0
	for done < len(data) {
		at := off + int64(done)
		i := at / blockSize
		if n.blocks[i] == nil {
			if !n.p.take(blockSize) {
				break
			}
			n.blocks[i] = make([]byte, blockSize)
		}
		done += copy(n.blocks[i][at%blockSize:], data[done:])
	}
	n.size = max(n.size, off+int64(done))
	if done == 0 && len(data) > 0 {
		return 0, syscall.ENOSPC
	}
	return done, 0
}

func (n *scratchNode) growLocked(size int64) {
	if want := (size + blockSize - 1) / blockSize; int64(len(n.blocks)) < want {
		n.blocks = append(n.blocks, make([][]byte, want-int64(len(n.blocks)))...)
	}
}

// truncate sets the size; a larger one adds a hole.
func (n *scratchNode) truncate(size int64) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if size == 0 {
		n.base = nil
	} else if errno := n.settleLocked(); errno != 0 {
		return errno
	}
	if size > n.p.limit {
		return syscall.EFBIG
	}
	n.truncateLocked(size)
	n.touchLocked()
	return 0
}

func (n *scratchNode) truncateLocked(size int64) {
	keep := (size + blockSize - 1) / blockSize
	for i := keep; i < int64(len(n.blocks)); i++ {
		if n.blocks[i] != nil {
			n.p.give(blockSize)
		}
	}
	if int64(len(n.blocks)) > keep {
		clear(n.blocks[keep:])
		n.blocks = n.blocks[:keep]
	}
	if size < n.size && size%blockSize != 0 && n.blocks[size/blockSize] != nil {
		clear(n.blocks[size/blockSize][size%blockSize:])
	}
	n.growLocked(size)
	n.size = size
}

// punch makes [off, off+length) zero without changing the size, and gives whole blocks back.
func (n *scratchNode) punch(off, length int64) syscall.Errno {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errno := n.settleLocked(); errno != 0 {
		return errno
	}
	end := min(off+length, n.size)
	for at := off; at < end; {
		i := at / blockSize
		stop := min(end, (i+1)*blockSize)
		if b := n.blocks[i]; b != nil {
			if at == i*blockSize && stop == at+blockSize {
				n.blocks[i] = nil
				n.p.give(blockSize)
			} else {
				clear(b[at-i*blockSize : stop-i*blockSize])
			}
		}
		at = stop
	}
	n.touchLocked()
	return 0
}

// drop frees a whole tree, for a checkpoint or mount that is gone. Open files keep their memory until closed.
func (n *scratchNode) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range n.children {
		ch.drop()
	}
	n.children = nil
	if n.nlink > 0 {
		n.nlink = 0
		n.freeLocked()
	}
}
