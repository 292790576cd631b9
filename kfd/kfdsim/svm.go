package kfdsim

import (
	"slices"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// svmRange is a range of the process's own memory that the driver keeps
// attributes of. Only those are modelled: the pages stay where they are, and a
// GPU that may access the range reads and writes the process.
type svmRange struct {
	start, size uint64
	// attrs are, in order: preferred location, prefetch location, flags set,
	// granularity; then one access attribute for each GPU (as CRIU saves them).
	attrs []abi.KFDSVMAttribute
}

// Operations and attributes of KFDIocSVM (linux/kfd_ioctl.h).
const (
	svmSetAttr = 0
	svmGetAttr = 1

	svmPreferredLoc    = 0
	svmPrefetchLoc     = 1
	svmAccess          = 2
	svmAccessInPlace   = 3
	svmNoAccess        = 4
	svmSetFlags        = 5
	svmClearFlags      = 6
	svmGranularity     = 7
	svmLocationUnknown = 0xffffffff
	svmHeadSize        = 24
)

func (p *kfdProcess) newSVMRange(start, size uint64) *svmRange {
	r := &svmRange{start: start, size: size, attrs: []abi.KFDSVMAttribute{
		{Type: svmPreferredLoc, Value: svmLocationUnknown}, {Type: svmPrefetchLoc, Value: svmLocationUnknown},
		{Type: svmSetFlags, Value: 3}, {Type: svmGranularity, Value: 9},
	}}
	for _, d := range p.pdds {
		typ := uint32(svmNoAccess)
		if p.xnack {
			typ = svmAccess
		}
		r.attrs = append(r.attrs, abi.KFDSVMAttribute{Type: typ, Value: d.userID})
	}
	return r
}

// accessible reports whether a GPU may use the range.
func (r *svmRange) accessible(g *gpu) bool {
	for i, d := range r.attrs[abi.KFDPrivSVMCommonAttrs:] {
		if g.sim.gpus[i] == g {
			return d.Type == svmAccess || d.Type == svmAccessInPlace
		}
	}
	return false
}

// svmRangeAt finds the range of an address. Preconditions: Sim.mu is held.
func (p *kfdProcess) svmRangeAt(va uint64) *svmRange {
	for _, r := range p.svm {
		if va >= r.start && va-r.start < r.size {
			return r
		}
	}
	return nil
}

func kfdSVM(c *kfdCall) syscall.Errno {
	var args abi.KFDSVMArgs
	if len(c.in) < svmHeadSize {
		return syscall.EINVAL
	}
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	attrs := make([]abi.KFDSVMAttribute, args.NAttr)
	if args.NAttr > 64 || len(c.in) < svmHeadSize+8*int(args.NAttr) || abi.Decode(c.in[svmHeadSize:], attrs) != nil {
		return c.sim.refuse(syscall.EINVAL, "svm attributes are cut off", "nattr", args.NAttr)
	}
	if (args.StartAddr|args.Size)%pageSize != 0 || args.Size == 0 {
		return c.sim.refuse(syscall.EINVAL, "svm range is not made of whole pages", "start", args.StartAddr, "size",
			args.Size)
	}
	if args.Op == svmSetAttr {
		if err := checkUserRange(c.proc.pid, args.StartAddr, args.Size, false); err != nil {
			return c.sim.refuse(syscall.EFAULT, err.Error())
		}
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	switch args.Op {
	case svmSetAttr:
		return c.proc.setSVM(args.StartAddr, args.Size, attrs)
	case svmGetAttr:
		r := c.proc.svmRangeAt(args.StartAddr)
		if r == nil {
			r = c.proc.newSVMRange(args.StartAddr, args.Size)
		}
		for i := range attrs {
			c.proc.getSVM(r, &attrs[i])
		}
		var buf []byte
		buf = appendStruct(buf, &args)
		buf = appendStruct(buf, attrs)
		copy(c.out, buf)
		return 0
	}
	return c.sim.refuse(syscall.EINVAL, "svm operation", "op", args.Op)
}

// setSVM applies attributes to a range, made when there is none. Ranges are
// set whole: a new range that cuts into an old one is refused, where the
// driver would split.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) setSVM(start, size uint64, attrs []abi.KFDSVMAttribute) syscall.Errno {
	var r *svmRange
	for _, o := range p.svm {
		if o.start == start && o.size == size {
			r = o
		} else if o.start < start+size && start < o.start+o.size {
			return p.sim.refuse(syscall.EINVAL, "splitting svm ranges is not modelled", "start", start, "size", size)
		}
	}
	made := r == nil
	if made {
		r = p.newSVMRange(start, size)
	}
	for _, a := range attrs {
		switch a.Type {
		case svmPreferredLoc, svmPrefetchLoc, svmSetFlags, svmClearFlags, svmGranularity:
			switch a.Type {
			case svmSetFlags:
				r.attrs[2].Value |= a.Value
			case svmClearFlags:
				r.attrs[2].Value &^= a.Value
			case svmGranularity:
				r.attrs[3].Value = a.Value
			default:
				r.attrs[a.Type].Value = a.Value
			}
		case svmAccess, svmAccessInPlace, svmNoAccess:
			i := slices.IndexFunc(p.pdds, func(d *pdd) bool { return d.userID == a.Value })
			if i < 0 {
				return p.sim.refuse(syscall.EINVAL, "svm attribute for no gpu", "gpu", a.Value)
			}
			r.attrs[abi.KFDPrivSVMCommonAttrs+i].Type = a.Type
		default:
			return p.sim.refuse(syscall.EINVAL, "svm attribute", "type", a.Type)
		}
	}
	if made {
		p.svm = append(p.svm, r)
	}
	return 0
}

func (p *kfdProcess) getSVM(r *svmRange, a *abi.KFDSVMAttribute) {
	switch a.Type {
	case svmPreferredLoc, svmPrefetchLoc:
		a.Value = r.attrs[a.Type].Value
	case svmSetFlags:
		a.Value = r.attrs[2].Value
	case svmClearFlags:
		a.Value = ^r.attrs[2].Value
	case svmGranularity:
		a.Value = r.attrs[3].Value
	case svmAccess, svmAccessInPlace, svmNoAccess:
		for i, d := range p.pdds {
			if d.userID == a.Value {
				a.Type = r.attrs[abi.KFDPrivSVMCommonAttrs+i].Type
				return
			}
		}
	}
}
