package kfdsim

import (
	"fmt"
	"sort"
	"syscall"
)

// Rights of a mapping in a GPU address space.
const (
	vmRead = 1 << iota
	vmWrite
	vmExec
)

// vm is the address space that one DRM file, and the KFD process that acquired
// it, has on one GPU. Guarded by Sim.mu.
type vm struct {
	gpu  *gpu
	maps []mapping // by address, without overlap
	cut  bool      // a CLEAR has cut mappings: what is left of one may begin elsewhere
}

// mapping is a range of GPU addresses backed by a range of a BO. owner tells
// who made it: a *kfdMem, or a *gemObject.
type mapping struct {
	va, size uint64
	bo       *bo
	off      uint64
	prot     int
	owner    any
}

// Bounds of addresses that may be mapped: the first 64 KiB are reserved, and
// the hole in the middle of the 48-bit space belongs to nobody.
const (
	vaReservedBottom = 1 << 16
	vaHoleStart      = 1 << 47
)

// GPUFault is an access of the GPU that its address space does not allow.
type GPUFault struct {
	GPU    uint32 // gpu_id
	VA     uint64
	Write  bool
	Reason string

	cause error // of Reason; nil where the address space alone tells
}

// Unwrap gives what made the access fail: unix.ESRCH of memory whose process has ended, say.
func (f *GPUFault) Unwrap() error { return f.cause }

func (f *GPUFault) Error() string {
	verb := "read"
	if f.Write {
		verb = "write"
	}
	return fmt.Sprintf("gpu %#x: %s at %#x: %s", f.GPU, verb, f.VA, f.Reason)
}

// find returns the index of the first mapping that ends beyond va.
func (v *vm) find(va uint64) int {
	return sort.Search(len(v.maps), func(i int) bool { return v.maps[i].va+v.maps[i].size > va })
}

// mapBO adds a mapping, holding the BO. errno is EINVAL for a bad or taken
// range.
//
// Preconditions: Sim.mu is held.
func (s *Sim) mapBO(v *vm, m mapping) syscall.Errno {
	if (m.va|m.size|m.off)%pageSize != 0 || m.size == 0 {
		return s.refuse(syscall.EINVAL, "mapping is not made of whole pages", "va", m.va, "size", m.size, "offset",
			m.off)
	}
	if m.va < vaReservedBottom || m.va+m.size > vaHoleStart || m.va+m.size < m.va {
		return s.refuse(syscall.EINVAL, "address outside the usable range", "va", m.va, "size", m.size)
	}
	if m.off+m.size > m.bo.size || m.off+m.size < m.off {
		return s.refuse(syscall.EINVAL, "mapping reaches beyond its bo", "offset", m.off, "size", m.size, "bo_size",
			m.bo.size)
	}
	i := v.find(m.va)
	if i < len(v.maps) && v.maps[i].va < m.va+m.size {
		return s.refuse(syscall.EINVAL, "address range is taken", "va", m.va, "size", m.size, "by", v.maps[i].va)
	}
	m.bo.get()
	v.maps = append(v.maps, mapping{})
	copy(v.maps[i+1:], v.maps[i:])
	v.maps[i] = m
	return 0
}

// unmapAt removes the mapping of owner that begins at va, and reports whether
// there was one.
//
// Preconditions: Sim.mu is held.
func (s *Sim) unmapAt(v *vm, va uint64, owner any) bool {
	i := v.find(va)
	if i == len(v.maps) || v.maps[i].va != va || v.maps[i].owner != owner {
		return false
	}
	s.putBO(v.maps[i].bo)
	v.maps = append(v.maps[:i], v.maps[i+1:]...)
	return true
}

// unmapIf removes the mappings that pred picks.
//
// Preconditions: Sim.mu is held.
func (s *Sim) unmapIf(v *vm, pred func(*mapping) bool) {
	kept := v.maps[:0]
	for i := range v.maps {
		if pred(&v.maps[i]) {
			s.putBO(v.maps[i].bo)
		} else {
			kept = append(kept, v.maps[i])
		}
	}
	clear(v.maps[len(kept):])
	v.maps = kept
}

// unmapObject removes the mappings of a GEM object.
//
// Preconditions: Sim.mu is held.
func (s *Sim) unmapObject(v *vm, o *gemObject) {
	if v.cut {
		s.unmapIf(v, func(m *mapping) bool { return m.owner == o })
		return
	}
	for _, va := range o.vas {
		s.unmapAt(v, va, o)
	}
}

// clearRange removes what lies in a range, cutting mappings that cross its
// ends.
//
// Preconditions: Sim.mu is held.
func (s *Sim) clearRange(v *vm, va, size uint64) {
	end := va + size
	var kept []mapping
	for _, m := range v.maps {
		mEnd := m.va + m.size
		if mEnd <= va || m.va >= end {
			kept = append(kept, m)
			continue
		}
		if m.va < va {
			left := m
			left.size = va - m.va
			left.bo.get()
			kept = append(kept, left)
		}
		if mEnd > end {
			v.cut = true
			right := m
			right.va, right.size, right.off = end, mEnd-end, m.off+(end-m.va)
			right.bo.get()
			kept = append(kept, right)
		}
		s.putBO(m.bo)
	}
	v.maps = kept
}

// span is a piece of an access: n bytes of a BO, or of a process when bo is
// nil, from off.
type span struct {
	bo  *bo
	pid int
	off uint64
	n   uint64
}

// spans resolves n bytes of GPU addresses, holding the BOs; release drops
// them.
//
// Preconditions: Sim.mu is held.
func (s *Sim) spans(a *access, va, n uint64, need int) ([]span, error) {
	var out []span
	fault := func(at uint64, reason string) ([]span, error) {
		s.releaseSpans(out)
		return nil, &GPUFault{GPU: a.vm.gpu.cfg.ID, VA: at, Write: need&vmWrite != 0, Reason: reason}
	}
	if va+n < va {
		return fault(va, "range wraps around")
	}
	for n > 0 {
		i := a.vm.find(va)
		if i == len(a.vm.maps) || a.vm.maps[i].va > va {
			if sp, ok := a.svmSpan(va, n); ok {
				out = append(out, sp)
				va, n = va+sp.n, n-sp.n
				continue
			}
			return fault(va, "not mapped")
		}
		m := &a.vm.maps[i]
		if m.prot&need != need {
			return fault(va, "mapping does not allow it")
		}
		// Memory of the KFD is always resident; a GEM BO is for the job's
		// time, if the submission names it.
		if _, kfd := m.owner.(*kfdMem); a.listed != nil && !kfd && !a.listed[m.bo] {
			return fault(va, fmt.Sprintf("bo %d is not in the submission's bo list", m.bo.id))
		}
		off, part := m.off+(va-m.va), min(n, m.va+m.size-va)
		if a.listed == nil && m.bo.missing != nil {
			if hole, ok := m.bo.missing.over(off, part); ok {
				return fault(va+max(hole.off, off)-off,
					fmt.Sprintf("bo %d of %d bytes is not filled from byte %d to %d", m.bo.id, m.bo.size, hole.off,
						hole.end))
			}
		}
		if m.bo.lost {
			return fault(va, "the driver found no pages behind it: userfaultfd had yet to bring one")
		}
		sp := span{bo: m.bo.get(), off: off, n: part}
		out = append(out, sp)
		va, n = va+sp.n, n-sp.n
	}
	return out, nil
}

// releaseSpans drops the holds of spans. Preconditions: Sim.mu is held.
func (s *Sim) releaseSpans(spans []span) {
	for _, sp := range spans {
		if sp.bo != nil {
			s.putBO(sp.bo)
		}
	}
}
