package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// Buffer objects of render nodes come back in two steps. The first task that opens a
// file of an object, a render node or a dma-buf, makes the object and hands over its
// dma-buf. An object that a process's KFD holds comes with RESTORE. So a task waits for
// a RESTORE, and never for another task that waits. The other holders import the object
// when a task asks for the place of a mapping, and at the latest before RESUME. Then
// address spaces are as they were.

// objects are those of one restore. They are made by prepare.
type objects struct {
	of map[any]*object // by the image message of a holder

	mu    sync.Mutex
	nodes []*objectNode
	fills sync.WaitGroup
	err   error // the first of a fill
}

// object is a piece of memory that a render node or a dma-buf holds, or several.
type object struct {
	kfd     bool         // RESTORE makes it
	size    uint64       // of one that has no number, in bytes
	claimed bool         // somebody makes it; objects.mu
	what    *description // nil: the KFD's, or no image has its contents
	ready   chan struct{}
	dmabuf  *os.File // when ready is closed, or
	err     error
}

// description is an object's in an image that has its contents.
type description struct {
	bo  *imagepb.RenderBO
	at  image.BO
	gpu uint32
}

// objectNode is a render node with objects that a task has opened.
type objectNode struct {
	pid  int
	file *os.File
	n    image.RenderNode

	mu      sync.Mutex
	settled bool
	made    map[int]bool // by index: under its handle already
}

// objectWait is how long an object may take that another task makes.
const objectWait = 30 * time.Second

// newObjects learns from the images which objects are held by render nodes and
// dma-bufs, and which of those are the KFD's. In ours an object has a number. In those of
// CRIU's plugin an import has the handle of its object, on whatever node that is: where
// several objects have that, or one of another size, nobody can tell which is meant.
func newObjects(set *image.Set) *objects {
	o := &objects{of: map[any]*object{}}
	numbers, named := map[uint64]*object{}, map[uint32]*object{}
	numbered := func(n uint64) *object {
		if numbers[n] == nil {
			numbers[n] = &object{ready: make(chan struct{})}
		}
		return numbers[n]
	}
	name := func(handle uint32, x *object) {
		if y := named[handle]; y != nil && y != x {
			x = lost(handle)
		}
		named[handle] = x
	}
	for _, n := range set.RenderNodes {
		for _, bo := range n.Message.Bos {
			if bo.Object != nil {
				o.of[bo] = numbered(bo.GetObject())
			} else if bo.GetIsImport() == 0 {
				o.of[bo] = &object{size: bo.GetSize(), ready: make(chan struct{})}
				name(bo.GetHandle(), o.of[bo])
			}
		}
	}
	for _, d := range set.Dmabufs {
		if d.Message.Object != nil {
			o.of[d.Message] = numbered(d.Message.GetObject())
		}
	}
	for _, p := range set.Processes {
		for _, bo := range p.Message.Bos {
			if bo.GetObject() != 0 {
				if x := numbers[bo.GetObject()]; x != nil {
					x.kfd, o.of[bo] = true, x
				}
			} else if bo.Object == nil && bo.Handle != nil && bo.GetHandle() != abi.DRMInvalidHandle {
				o.of[bo] = &object{kfd: true, size: bo.GetSize(), ready: make(chan struct{})}
				name(bo.GetHandle(), o.of[bo])
			}
		}
	}
	held := map[*object]bool{}
	for _, n := range set.RenderNodes {
		for i, bo := range n.Message.Bos {
			if o.of[bo] == nil {
				if o.of[bo] = named[bo.GetHandle()]; o.of[bo] == nil || o.of[bo].size != bo.GetSize() {
					o.of[bo] = lost(bo.GetHandle())
				}
			}
			held[o.of[bo]] = true
			o.of[bo].describe(bo, n.Layout.BOs[i], n.Message.GetGpuId())
		}
	}
	for _, d := range set.Dmabufs {
		if o.of[d.Message] == nil {
			o.of[d.Message] = o.unnumbered(set, named, d)
		}
		held[o.of[d.Message]] = true
		if d.Message.Bo != nil {
			o.of[d.Message].describe(d.Message.Bo, d.Layout.BOs[0], d.Message.GetGpuId())
		}
	}
	for _, p := range set.Processes {
		for _, bo := range p.Message.Bos {
			if !held[o.of[bo]] {
				delete(o.of, bo) // nobody else's
			}
		}
	}
	return o
}

// lost is an object whose handle is that of several in the images, or of none.
func lost(handle uint32) *object {
	return unknown("CRIU's plugin calls its object handle %d, and several others, "+
		"or one of another size, or none", handle)
}

// unknown is an object of which the images do not tell what it is.
func unknown(format string, args ...any) *object {
	x := &object{claimed: true, ready: make(chan struct{}),
		err: fmt.Errorf(format+": which is meant cannot be told (hint: dump with gpucr-fs's plugin)", args...)}
	close(x.ready)
	return x
}

// unnumbered is the object of a dma-buf in an image of CRIU's plugin, which has nothing but a handle. The plugin
// imports the dma-buf on one open render node after the other, those of the processes and its own, and notes the first
// number that any object has, on whatever node that is: it may be a new number, of nothing. So the number tells
// something only where it is the same object's on all of them.
func (o *objects) unnumbered(set *image.Set, named map[uint32]*object, d image.Dmabuf) *object {
	handle := d.Message.GetGemHandle()
	x := named[handle]
	untold := func(node string) *object {
		return unknown("CRIU's plugin calls its object handle %d, on a render node of which it does not tell, "+
			"and on %s that is another object or none", handle, node)
	}
	if x == nil || len(set.RenderNodes) == 0 {
		return untold("each")
	}
	for _, n := range set.RenderNodes {
		if !slices.ContainsFunc(n.Message.Bos, func(bo *imagepb.RenderBO) bool {
			return bo.GetHandle() == handle && o.of[bo] == x
		}) {
			return untold("that of " + n.Name)
		}
	}
	own := map[uint32]bool{} // by GPU: whether the plugin's own open has the object
	for _, p := range set.Processes {
		for _, bo := range p.Message.Bos {
			if bo.Handle != nil && bo.GetHandle() != abi.DRMInvalidHandle {
				own[bo.GetGpuId()] = own[bo.GetGpuId()] || bo.GetHandle() == handle && o.of[bo] == x
			}
		}
	}
	for gpu, has := range own {
		if !has {
			return untold(fmt.Sprintf("the plugin's own of GPU %#x", gpu))
		}
	}
	return x
}

// describe notes what an image tells of an object, the first that has its contents.
func (x *object) describe(bo *imagepb.RenderBO, at image.BO, gpu uint32) {
	if x.what == nil && at.File != "" {
		x.what = &description{bo, at, gpu}
	}
}

// claim tells whether the caller has to make an object.
func (o *objects) claim(x *object) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x.claimed || x.kfd {
		return false
	}
	x.claimed = true
	return true
}

// give says what became of an object; f is the caller's.
func (x *object) give(f *os.File, err error) {
	if err == nil {
		var fd int
		if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			x.dmabuf = os.NewFile(uintptr(fd), "dma-buf")
		}
	}
	x.err = err
	close(x.ready)
}

// wait waits for an object.
func (x *object) wait(ctx context.Context) (*os.File, error) {
	late := time.NewTimer(objectWait)
	defer late.Stop()
	select {
	case <-x.ready:
		return x.dmabuf, x.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-late.C:
		return nil, fmt.Errorf("the process that has it was not restored in %v", objectWait)
	}
}

// shared tells which BOs of a process others hold: they are never filled after it.
func (o *objects) shared(p image.Process) []bool {
	out := make([]bool, len(p.Message.Bos))
	for i, bo := range p.Message.Bos {
		out[i] = o.of[bo] != nil
	}
	return out
}

// restored hands over what RESTORE of a process has made.
func (o *objects) restored(p image.Process, dmabufs []*os.File, err error) {
	for i, bo := range p.Message.Bos {
		x := o.of[bo]
		if x == nil {
			continue
		}
		o.mu.Lock()
		first := !x.claimed
		x.claimed = true
		o.mu.Unlock()
		switch {
		case !first: // the driver has given each process memory of its own
		case err != nil:
			x.give(nil, err)
		case dmabufs[i] == nil:
			x.give(nil, errors.New("the driver gave no handle to its memory"))
		default:
			x.give(dmabufs[i], nil)
		}
	}
}

// close lets go of all.
func (o *objects) close() {
	for _, n := range o.nodes {
		n.file.Close()
	}
	for _, x := range o.of {
		if x.dmabuf != nil {
			x.dmabuf.Close() // once: more often does nothing
		}
	}
}
