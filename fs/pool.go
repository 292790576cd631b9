package fs

import (
	"container/list"
	"sync"
	"sync/atomic"
	"syscall"
)

// pool bounds what the scratch files of a mount take of the store's file system, and numbers them.
//
// By-products of CRIU never meet the bound: no dump shall fail for the logs of those before it. Those that nobody has
// open are given up instead, the one that was closed first before the others.
type pool struct {
	dir   string // where contents are kept
	limit int64  // bytes
	files int    // with contents: each is a descriptor
	used  atomic.Int64
	next  atomic.Uint64

	mu     sync.Mutex
	idle   list.List // of *scratchNode: by-products that nobody has open, the one closed first in front
	left   list.List // of *scratchNode: unlinked files that nobody has open, but the kernel knows
	backed map[*backing]struct{}
}

// evictionEntry is the entry of a node in pool.idle or pool.left.
type evictionEntry = list.Element

func newPool(dir string, limit int64) *pool {
	return &pool{dir: dir, limit: limit, files: maxBackings(), backed: map[*backing]struct{}{}}
}

// nodeCost is charged for a scratch node's own memory, so that many empty files meet the bound too.
const nodeCost = 512

// take reserves n bytes; false when that exceeds the bound, which by-products may.
func (p *pool) take(n int64, byProduct bool) bool {
	if p.used.Add(n) > p.limit && !byProduct {
		p.used.Add(-n)
		return false
	}
	return true
}

func (p *pool) give(n int64) { p.used.Add(-n) }

// rest lets n be given up. Call with n.mu held.
func (p *pool) rest(n *scratchNode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.eviction == nil {
		n.eviction = p.idle.PushBack(n)
	}
}

// leave lets n, which has no name any more, be given up before any other. Call with n.mu held.
func (p *pool) leave(n *scratchNode) {
	p.wake(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	n.eviction = p.left.PushBack(n)
}

// wake keeps n from being given up. Call with n.mu held.
func (p *pool) wake(n *scratchNode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.eviction != nil {
		p.idle.Remove(n.eviction) // a list leaves an element of another one alone
		p.left.Remove(n.eviction)
		n.eviction = nil
	}
}

// oldest takes off its list the node to be given up next: one without a name, or the one that rests longest; nil when
// there is none but the one that came last, which somebody may be about to read.
func (p *pool) oldest() *scratchNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := &p.left
	if from.Len() == 0 {
		if from = &p.idle; from.Len() < 2 {
			return nil
		}
	}
	n := from.Remove(from.Front()).(*scratchNode)
	n.eviction = nil
	return n
}

// makeRoom gives up the oldest by-products until there is room for n bytes and a file, or no by-product is left. Call
// it without locks.
func (p *pool) makeRoom(n int64) {
	for p.over(n) {
		old := p.oldest()
		if old == nil {
			return
		}
		old.giveUp()
	}
}

func (p *pool) over(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used.Load()+n > p.limit || len(p.backed) >= p.files
}

// newBacking makes an empty file for contents.
func (p *pool) newBacking(byProduct bool) (*backing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.backed) >= p.files && !byProduct {
		return nil, syscall.ENOSPC
	}
	f, err := newBacking(p.dir)
	if err != nil {
		return nil, err
	}
	p.backed[f] = struct{}{}
	return f, nil
}

// discard gives contents up; nil is none.
func (p *pool) discard(f *backing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.backed[f]; ok {
		delete(p.backed, f)
		f.close()
	}
}

// close gives all contents up, when nobody can ask for them any more.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.backed {
		f.close()
	}
	clear(p.backed)
}
