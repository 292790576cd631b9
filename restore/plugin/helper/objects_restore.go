package helper

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// opened takes the objects of a render node that a task has opened: those that nobody
// has made are made.
func (r *restore) opened(c *wire.Conn, id int, node *os.File) error {
	i := slices.IndexFunc(r.set.RenderNodes, func(n image.RenderNode) bool { return n.ID == id })
	pid, pidfd, err := c.Peer()
	if err == nil {
		err = r.addHolder(pid, pidfd)
	}
	if i < 0 || err != nil {
		node.Close()
		return answer(c, wire.OK, "", errors.Join(err, errNoFile))
	}
	n := &objectNode{pid: pid, file: node, n: r.set.RenderNodes[i], made: map[int]bool{}}
	r.objects.mu.Lock()
	r.objects.nodes = append(r.objects.nodes, n)
	r.objects.mu.Unlock()
	var mine []int
	for i, bo := range n.n.Message.Bos {
		// One of another GPU is made there.
		d := r.objects.of[bo].what
		if d != nil && d.gpu == n.n.Message.GetGpuId() && r.objects.claim(r.objects.of[bo]) {
			mine = append(mine, i)
		}
	}
	err = r.make(c, n, mine)
	if err != nil {
		err = fmt.Errorf("%s: %w", n.n.Name, err)
	}
	return answer(c, wire.OK, "", err)
}

// make makes objects on their render node, under their handles, and fills them.
func (r *restore) make(c *wire.Conn, n *objectNode, mine []int) (err error) {
	var gaveUp int
	defer func() {
		for _, i := range mine[gaveUp:] {
			bo := n.n.Message.Bos[i]
			r.objects.of[bo].give(nil, fmt.Errorf("%s: %w", n.n.Name, err))
		}
	}()
	minor, err := r.renderMinor(n.n.Message.GetGpuId(), n.n.Name, nil)
	if err != nil {
		return err
	}
	var numbers []uint32
	for _, i := range mine {
		bo := n.n.Message.Bos[i]
		handle, err := gemCreate(n.file, createInfo(bo))
		if err == nil {
			err = gemRename(n.file, handle, bo.GetHandle())
		}
		if err != nil {
			return fmt.Errorf("buffer object %d of %d bytes: %w", i, bo.GetSize(), err)
		}
		n.made[i] = true
		numbers = append(numbers, bo.GetHandle())
	}
	dmabufs, err := exports(c, nil, numbers)
	if err != nil {
		closeAll(dmabufs)
		return err
	}
	var plan vram.Plan
	for k, i := range mine {
		x := r.objects.of[n.n.Message.Bos[i]]
		x.give(dmabufs[k], nil)
		gaveUp++
		plan.BOs = append(plan.BOs, contentsAt(n.pid, x.what.at, dmabufs[k]))
	}
	r.fillObjects(plan, minor)
	return nil
}

func createInfo(bo *imagepb.RenderBO) abi.AMDGPUGEMCreateIn {
	return abi.AMDGPUGEMCreateIn{BOSize: bo.GetSize(), Alignment: bo.GetAlignment(),
		Domains: uint64(bo.GetPreferredDomains()), DomainFlags: bo.GetAllocFlags()}
}

func contentsAt(pid int, at image.BO, dmabuf *os.File) vram.BO {
	return vram.BO{PID: pid, GPU: at.GPUID, Index: at.Index, Kind: at.Kind.String(), VA: at.Addr, Size: uint64(at.Size),
		Dmabuf: dmabuf, File: at.File, Off: at.Offset}
}

// fillObjects fills objects of a render node, whose dma-bufs it takes over. No process
// runs before it has.
func (r *restore) fillObjects(p vram.Plan, minor uint32) {
	r.objects.fills.Add(1)
	r.wg.Go(func() {
		defer r.objects.fills.Done()
		f, err := os.OpenFile(nodePath(minor), os.O_RDWR, 0)
		if err == nil {
			p.Nodes = []vram.Node{{File: f, Name: fmt.Sprintf("renderD%d", minor)}}
			_, err = r.fillPart(r.work, p, nil)
			f.Close()
		}
		for _, bo := range p.BOs {
			bo.Dmabuf.Close()
		}
		r.objects.mu.Lock()
		defer r.objects.mu.Unlock()
		if r.objects.err == nil {
			r.objects.err = err
		}
	})
}

// dmabuf gives a task the dma-buf of an image. One of a KFD's a task waits for when its
// own is restored, whatever the order of its files: so nobody waits for ever. pid is the
// task's number in its own namespace, as the driver tells it.
func (r *restore) dmabuf(c *wire.Conn, d image.Dmabuf, pid uint32, visible []uint32) error {
	fail := func(err error) error { return answer(c, wire.OK, "", fmt.Errorf("%s: %w", d.Name, err)) }
	x := r.objects.of[d.Message]
	if r.objects.claim(x) {
		err := r.makeDmabuf(c, d, x, visible)
		if err != nil {
			return fail(err)
		}
	}
	if own := r.ownKFD(c, pid); x.kfd && own != nil {
		return c.Send(&wire.Message{Type: wire.File, ID: uint32(own.ID)})
	}
	stop := working(c)
	f, err := x.wait(r.ctx)
	stop()
	if err != nil {
		return fail(err)
	}
	return c.Send(&wire.Message{Type: wire.OK}, f)
}

// ownKFD is the image of a task's KFD that it has not restored.
func (r *restore) ownKFD(c *wire.Conn, pid uint32) *image.Process {
	real, pidfd, err := c.Peer()
	if err != nil {
		return nil
	}
	if pidfd != nil {
		pidfd.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tasks[real]; t != nil && t.image != nil {
		return nil
	}
	i := slices.IndexFunc(r.set.Processes, func(p image.Process) bool { return p.Message.GetPid() == pid })
	if i < 0 {
		return nil
	}
	return &r.set.Processes[i]
}

// makeDmabuf makes an object whose first holder is a dma-buf, from the image of
// the object's owner.
func (r *restore) makeDmabuf(c *wire.Conn, d image.Dmabuf, x *object, visible []uint32) (err error) {
	gave := false
	defer func() {
		if !gave {
			x.give(nil, err)
		}
	}()
	what := x.what
	if what == nil {
		return errors.New("no image has its buffer object")
	}
	minor, err := r.renderMinor(what.gpu, d.Name, visible)
	if err != nil {
		return err
	}
	pid, pidfd, err := c.Peer()
	if err == nil {
		err = r.addHolder(pid, pidfd)
	}
	if err != nil {
		return err
	}
	node, err := os.OpenFile(nodePath(minor), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer node.Close()
	handle, err := gemCreate(node, createInfo(what.bo))
	if err != nil {
		return err
	}
	dmabufs, err := exports(c, node, []uint32{handle})
	if err != nil {
		closeAll(dmabufs)
		return err
	}
	gave = true
	x.give(dmabufs[0], nil)
	r.fillObjects(vram.Plan{BOs: []vram.BO{contentsAt(pid, what.at, dmabufs[0])}}, minor)
	return nil
}

// mapping tells a task where an object lies that it had mapped.
func (r *restore) mapping(c *wire.Conn, m *wire.Message) error {
	pid, pidfd, err := c.Peer()
	if err != nil {
		return answer(c, wire.OK, "", err)
	}
	if pidfd != nil {
		pidfd.Close()
	}
	r.objects.mu.Lock()
	nodes := slices.Clone(r.objects.nodes)
	r.objects.mu.Unlock()
	// Offsets are of the GPU: where the process's own open does not know it, another's does.
	slices.SortStableFunc(nodes, func(a, b *objectNode) int {
		return boolInt(a.pid != pid) - boolInt(b.pid != pid)
	})
	for _, n := range nodes {
		if n.n.Message.GetDrmRenderMinor() != m.Minor {
			continue
		}
		for _, bo := range n.n.Message.Bos {
			if off := bo.GetOffset(); off == 0 || m.Size < off || m.Size-off >= bo.GetSize() {
				continue
			}
			stop := working(c)
			err := r.settle(n)
			stop()
			var now uint64
			if err == nil {
				now, err = gemOffset(n.file, bo.GetHandle())
			}
			if err != nil {
				return answer(c, wire.OK, "", fmt.Errorf("%s: %w", n.n.Name, err))
			}
			return c.Send(&wire.Message{Type: wire.OK, Size: now + m.Size - bo.GetOffset()}, n.file)
		}
	}
	return answer(c, wire.OK, "", errNoFile)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// settle imports what others have made of a render node's objects, under the handles
// that they had, and maps all to where they were. It is called when the task has all its
// files: its KFD, if it has one, has the address space.
func (r *restore) settle(n *objectNode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.settled {
		return nil
	}
	for i, bo := range n.n.Message.Bos {
		if n.made[i] {
			continue
		}
		dmabuf, err := r.objects.of[bo].wait(r.ctx)
		if err != nil {
			return fmt.Errorf("buffer object %d, of another: %w", i, err)
		}
		handle, err := gemImport(n.file, dmabuf)
		if err == nil {
			err = gemRename(n.file, handle, bo.GetHandle())
		}
		if err != nil {
			return fmt.Errorf("import buffer object %d: %w", i, err)
		}
		n.made[i] = true
	}
	for i, bo := range n.n.Message.Bos {
		for _, m := range bo.Mappings {
			at := abi.AMDGPUGEMVMEntry{Addr: m.GetAddr(), Size: m.GetSize(), Offset: m.GetOffset(), Flags: m.GetFlags()}
			if r.kfdMaps(n.pid, bo, m) {
				continue
			}
			if err := gemMap(n.file, bo.GetHandle(), at); err != nil {
				return fmt.Errorf("map buffer object %d at %#x: %w", i, at.Addr, err)
			}
		}
	}
	n.settled = true
	return nil
}

// kfdMaps tells whether RESTORE has made a mapping. The driver lists all mappings of an
// object, no matter which process or file made them.
func (r *restore) kfdMaps(pid int, bo *imagepb.RenderBO, m *imagepb.Mapping) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[pid]
	if t == nil || t.image == nil {
		return false
	}
	return slices.ContainsFunc(t.image.Message.Bos, func(k *imagepb.BO) bool {
		return k.GetAddr() == m.GetAddr() && r.objects.of[k] == r.objects.of[bo]
	})
}

// settleAll has all objects in place. Every task has all its files then.
func (r *restore) settleAll() error {
	if <-r.ready; r.objects == nil {
		return nil // the images were not read
	}
	r.objects.mu.Lock()
	nodes := slices.Clone(r.objects.nodes)
	r.objects.mu.Unlock()
	for _, n := range nodes {
		if err := r.settle(n); err != nil {
			return fmt.Errorf("%s: %w", n.n.Name, err)
		}
	}
	r.objects.fills.Wait()
	r.objects.mu.Lock()
	defer r.objects.mu.Unlock()
	return r.objects.err
}
