package fs

import (
	"slices"
	"sync"
	"syscall"
	"time"
)

// scratchNode is a file, directory, symlink, socket or fifo beside the images.
type scratchNode struct {
	p         *pool
	ino       uint64
	typ       uint32 // S_IFMT bits; immutable
	byProduct bool   // see byProduct; immutable

	mu                  sync.Mutex
	perm                uint32 // 07777 bits
	uid, gid            uint32
	atime, mtime, ctime time.Time
	nlink               uint32
	rdev                uint32
	opens               int  // handles
	known               bool // by the kernel, which may open it: see freeLocked
	freed               bool // contents and charge are given back
	target              string
	file                *backing                       // contents of a regular file; nil before they are needed
	base                func() ([]byte, syscall.Errno) // what they start as, baseSize bytes; nil: nothing
	baseSize            int64
	charged             int64        // taken from the pool for the contents
	dir                 *scratchNode // that has it as name; nil when it was unlinked
	name                string
	children            map[string]*scratchNode // of a directory

	eviction *evictionEntry // nil while it is not to be given up; guarded by pool.mu
}

func (p *pool) newNode(typ, perm, uid, gid uint32, byProduct bool) (*scratchNode, syscall.Errno) {
	if !p.take(nodeCost, byProduct) {
		return nil, syscall.ENOSPC
	}
	now := time.Now()
	n := &scratchNode{
		p:         p,
		ino:       inoScratch | p.next.Add(1),
		typ:       typ,
		byProduct: byProduct,
		perm:      perm & 0o7777,
		uid:       uid,
		gid:       gid,
		atime:     now,
		mtime:     now,
		ctime:     now,
		nlink:     1,
	}
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
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.dir, ch.name = n, name
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

// freeLocked gives back what a node takes when neither name nor handle is left, and the kernel has forgotten it:
// a process that has looked up a file may still open it after another has put a new one in its place. The pool takes it
// before that when it needs the room.
func (n *scratchNode) freeLocked() {
	switch {
	case n.nlink > 0 || n.opens > 0 || n.freed:
	case n.known && n.typ == syscall.S_IFREG:
		n.p.leave(n)
	default:
		n.freeNowLocked()
	}
}

func (n *scratchNode) freeNowLocked() {
	n.freed = true
	n.dir, n.base = nil, nil
	n.p.wake(n)
	n.p.discard(n.file)
	n.file = nil
	n.p.give(n.charged + nodeCost)
	n.charged = 0
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

// forgotten notes that the kernel does not know the node any more.
func (n *scratchNode) forgotten() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = false
	n.freeLocked()
}

// giveUp takes away the only name of a file that nobody has open, or frees it if it has none.
func (n *scratchNode) giveUp() {
	n.mu.Lock()
	dir, name := n.dir, n.name
	if n.nlink == 0 && n.opens == 0 && !n.freed {
		n.freeNowLocked()
	}
	n.mu.Unlock()
	if dir == nil {
		return
	}
	dir.mu.Lock()
	defer dir.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opens > 0 || n.nlink != 1 || dir.children[name] != n {
		return
	}
	delete(dir.children, name)
	n.nlink = 0
	n.freeNowLocked()
}

// drop frees a whole tree, for a checkpoint or mount that is gone. Open files keep their memory until closed.
func (n *scratchNode) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range n.children {
		ch.drop()
	}
	n.children = nil
	n.nlink = 0
	if n.opens == 0 && !n.freed {
		n.freeNowLocked()
	}
}
