package kfdsim

import (
	"context"
	"encoding/binary"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// drmCtx is a context: a sequence of fences on every ring. Guarded by Sim.mu.
type drmCtx struct {
	pid    int
	rings  []ringFences // one for each SDMA engine
	guilty bool         // a job of it hung; it takes no more
}

// ringFences are the fences of a context on one ring. Sequence numbers begin
// at 1; pending holds those that may still be running.
type ringFences struct {
	last    uint64
	pending []*fenceUse
}

// fenceUse is a fence with the BOs its job uses.
type fenceUse struct {
	*fence
	bos map[*bo]bool
}

// maxPending is how many jobs of a context may be under way on a ring before a
// submission waits (amdgpu.sched_jobs).
const maxPending = 32

func amdgpuCtx(c *drmCall) syscall.Errno {
	var args abi.AMDGPUCtxIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	if args.Op == abi.AMDGPUCtxOpAlloc {
		c.drm.lastCtx++
		c.drm.ctxs[c.drm.lastCtx] = &drmCtx{pid: c.who.tid, rings: make([]ringFences, len(c.drm.gpu.engines))}
		return c.reply(&abi.AMDGPUCtxAllocOut{CtxID: c.drm.lastCtx})
	}
	ctx := c.drm.ctxs[args.CtxID]
	if ctx == nil {
		return c.sim.refuse(syscall.EINVAL, "no such context", "ctx", args.CtxID)
	}
	switch args.Op {
	case abi.AMDGPUCtxOpFree:
		delete(c.drm.ctxs, args.CtxID)
		return c.reply(&abi.AMDGPUCtxAllocOut{})
	case abi.AMDGPUCtxOpQueryState, abi.AMDGPUCtxOpQueryState2:
		var out abi.AMDGPUCtxStateOut
		if ctx.guilty {
			out.Flags, out.Hangs, out.ResetStatus = 1<<0|1<<2, 1, 1 // reset, guilty
		}
		return c.reply(&out)
	}
	return c.sim.refuse(syscall.EINVAL, "context operation", "op", args.Op)
}

// submission is a CS request while its chunks are read.
type submission struct {
	job    *job
	ring   int
	bos    map[*bo]bool
	held   []*bo
	hasIBs bool
}

func amdgpuCS(c *drmCall) syscall.Errno {
	var args abi.AMDGPUCSIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.NumChunks == 0 || args.NumChunks > 64 {
		return c.sim.refuse(syscall.EINVAL, "submission of a number of chunks", "chunks", args.NumChunks)
	}
	ptrs := make([]byte, 8*args.NumChunks)
	if errno := c.who.readUser(args.Chunks, ptrs); errno != 0 {
		return errno
	}
	sub := &submission{bos: map[*bo]bool{}, job: &job{}}
	errno := c.readChunks(sub, &args, ptrs)
	if errno == 0 && !sub.hasIBs {
		errno = c.sim.refuse(syscall.EINVAL, "submission without an ib")
	}
	var seq uint64
	if errno == 0 {
		seq, errno = c.submit(sub, &args)
	}
	if errno != 0 {
		c.sim.mu.Lock()
		c.sim.putList(sub.held)
		c.sim.unlock()
		return errno
	}
	return c.reply(&abi.AMDGPUCSOut{Handle: seq})
}

func (c *drmCall) readChunks(sub *submission, args *abi.AMDGPUCSIn, ptrs []byte) syscall.Errno {
	listed := args.BOListHandle != 0
	for i := range args.NumChunks {
		var head abi.AMDGPUCSChunk
		buf := make([]byte, 16)
		if errno := c.who.readUser(binary.NativeEndian.Uint64(ptrs[8*i:]), buf); errno != 0 {
			return errno
		}
		if abi.Decode(buf, &head) != nil || head.LengthDW > 1<<16 {
			return syscall.EINVAL
		}
		data := make([]byte, 4*head.LengthDW)
		if errno := c.who.readUser(head.ChunkData, data); errno != 0 {
			return errno
		}
		if errno := c.readChunk(sub, args, head.ChunkID, data, listed); errno != 0 {
			return errno
		}
	}
	if !listed {
		return 0
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	list, ok := c.drm.lists[args.BOListHandle]
	if !ok {
		return c.sim.refuse(syscall.ENOENT, "no such bo list", "list", args.BOListHandle)
	}
	for _, b := range list {
		sub.use(b.get())
	}
	return 0
}

func (sub *submission) use(b *bo) {
	sub.held = append(sub.held, b)
	sub.bos[b] = true
}

func (c *drmCall) readChunk(sub *submission, args *abi.AMDGPUCSIn, id uint32, data []byte, listed bool) syscall.Errno {
	s := c.sim
	switch id {
	case abi.AMDGPUChunkIB:
		var ib abi.AMDGPUCSChunkIB
		if len(data) < 32 || abi.Decode(data, &ib) != nil {
			return s.refuse(syscall.EINVAL, "ib chunk is too short")
		}
		if ib.IPType != abi.AMDGPUHWIPDMA || ib.IPInstance != 0 || int(ib.Ring) >= len(c.drm.gpu.engines) {
			return s.refuse(syscall.EINVAL, "submission to a ring not modelled", "ip", ib.IPType, "instance",
				ib.IPInstance, "ring", ib.Ring)
		}
		if sub.hasIBs && int(ib.Ring) != sub.ring {
			return s.refuse(syscall.EINVAL, "ibs of one submission on two rings")
		}
		// The engine fetches whole 8-dword groups.
		if ib.IBBytes == 0 || ib.IBBytes%32 != 0 || ib.VAStart%32 != 0 {
			return s.refuse(syscall.EINVAL, "ib is not padded or aligned to 8 dwords", "va", ib.VAStart, "bytes",
				ib.IBBytes)
		}
		sub.ring, sub.hasIBs = int(ib.Ring), true
		sub.job.ibs = append(sub.job.ibs, ibRange{va: ib.VAStart, n: uint64(ib.IBBytes)})
		return 0

	case abi.AMDGPUChunkBOHandles:
		var in abi.AMDGPUBOListIn
		if len(data) < 24 || abi.Decode(data, &in) != nil {
			return s.refuse(syscall.EINVAL, "bo handles chunk is too short")
		}
		if listed {
			return s.refuse(syscall.EINVAL, "both a bo list and a bo handles chunk")
		}
		list, errno := c.boListEntries(&in)
		if errno != 0 {
			return errno
		}
		for _, b := range list {
			sub.use(b)
		}
		return 0

	case abi.AMDGPUChunkFence:
		if len(data) < 8 {
			return s.refuse(syscall.EINVAL, "fence chunk is too short")
		}
		handle, off := binary.NativeEndian.Uint32(data), uint64(binary.NativeEndian.Uint32(data[4:]))
		s.mu.Lock()
		defer s.unlock()
		o, errno := c.object(handle)
		if errno != 0 {
			return errno
		}
		if o.bo.kind == boUserptr || off%8 != 0 || off+8 > o.bo.size {
			return s.refuse(syscall.EINVAL, "user fence outside its bo", "offset", off)
		}
		sub.use(o.bo.get())
		sub.job.userFence, sub.job.userOff = o.bo, off
		return 0

	case abi.AMDGPUChunkDependencies:
		return c.readDependencies(sub, data)
	}
	return s.refuse(syscall.EINVAL, "chunk not modelled", "id", id)
}

// readDependencies takes fences to wait for: {ip_type, ip_instance, ring, ctx,
// u64 handle} each.
func (c *drmCall) readDependencies(sub *submission, data []byte) syscall.Errno {
	c.sim.mu.Lock()
	defer c.sim.unlock()
	for ; len(data) >= 24; data = data[24:] {
		ring := binary.NativeEndian.Uint32(data[8:])
		ctx := c.drm.ctxs[binary.NativeEndian.Uint32(data[12:])]
		if ctx == nil || int(ring) >= len(ctx.rings) {
			return c.sim.refuse(syscall.EINVAL, "dependency on a context or ring that does not exist")
		}
		if f := ctx.rings[ring].find(binary.NativeEndian.Uint64(data[16:])); f != nil {
			sub.job.deps = append(sub.job.deps, f.fence)
		}
	}
	return 0
}

// submit queues the job, after waiting for a free place in the context.
func (c *drmCall) submit(sub *submission, args *abi.AMDGPUCSIn) (uint64, syscall.Errno) {
	s := c.sim
	for {
		s.mu.Lock()
		ctx := c.drm.ctxs[args.CtxID]
		if ctx == nil {
			s.unlock()
			return 0, s.refuse(syscall.EINVAL, "no such context", "ctx", args.CtxID)
		}
		if ctx.guilty {
			s.unlock()
			return 0, s.refuse(syscall.ECANCELED, "context is guilty of a hang", "ctx", args.CtxID)
		}
		r := &ctx.rings[sub.ring]
		r.retire()
		if len(r.pending) < maxPending {
			r.last++
			j := sub.job
			j.ctx, j.fence = ctx, newFence(r.last)
			j.access = &access{sim: s, vm: c.drm.vm, listed: sub.bos}
			held, drm := sub.held, c.drm
			drm.refs++
			j.release = func() {
				s.mu.Lock()
				s.putList(held)
				s.putDRMFile(drm)
				s.unlock()
			}
			r.pending = append(r.pending, &fenceUse{fence: j.fence, bos: sub.bos})
			seq := r.last
			s.unlock()
			c.drm.gpu.link.looksUp(sub.bos)
			c.drm.gpu.engines[sub.ring].push(j)
			return seq, 0
		}
		oldest := r.pending[0].fence
		s.unlock()
		if _, errno := waitFence(c.ctx, oldest, ^uint64(0)); errno == syscall.EINTR {
			return 0, errno
		}
	}
}

// retire forgets the fences at the front that are signalled.
func (r *ringFences) retire() {
	n := 0
	for n < len(r.pending) && r.pending[n].signalled() && r.pending[n].err == 0 {
		n++
	}
	r.pending = r.pending[n:]
}

func (r *ringFences) find(seq uint64) *fenceUse {
	for _, f := range r.pending {
		if f.seq == seq {
			return f
		}
	}
	return nil
}

// fencesOf returns the fences of unfinished jobs that use a BO.
//
// Preconditions: Sim.mu is held.
func (f *drmFile) fencesOf(b *bo) []*fence {
	var out []*fence
	for _, ctx := range f.ctxs {
		for i := range ctx.rings {
			for _, u := range ctx.rings[i].pending {
				if u.bos[b] && !u.signalled() {
					out = append(out, u.fence)
				}
			}
		}
	}
	return out
}

// waitFence waits until an absolute time and reports whether the fence is
// still busy then. errno is the fence's error, or EINTR.
func waitFence(ctx context.Context, f *fence, timeout uint64) (busy bool, errno syscall.Errno) {
	if !f.signalled() {
		t := time.NewTimer(untilAbsolute(timeout))
		defer t.Stop()
		select {
		case <-f.done:
		case <-t.C:
			return true, 0
		case <-ctx.Done():
			return true, syscall.EINTR
		}
	}
	return false, f.err
}

func amdgpuWaitCS(c *drmCall) syscall.Errno {
	var args abi.AMDGPUWaitCSIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	ctx := c.drm.ctxs[args.CtxID]
	if ctx == nil || args.IPType != abi.AMDGPUHWIPDMA || args.IPInstance != 0 || int(args.Ring) >= len(ctx.rings) {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "wait on a context or ring that does not exist", "ctx", args.CtxID, "ip",
			args.IPType, "ring", args.Ring)
	}
	r := &ctx.rings[args.Ring]
	seq := args.Handle
	if seq == ^uint64(0) {
		seq = r.last
	}
	if seq > r.last {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "wait for a submission not made yet", "seq", args.Handle, "last", r.last)
	}
	f := r.find(seq)
	c.sim.unlock()
	var out abi.AMDGPUWaitCSOut
	if f != nil {
		busy, errno := waitFence(c.ctx, f.fence, args.Timeout)
		if errno != 0 {
			return errno
		}
		if busy {
			out.Status = 1
		}
	}
	return c.reply(&out)
}
