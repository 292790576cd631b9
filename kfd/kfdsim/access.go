package kfdsim

import (
	"encoding/binary"
	"fmt"
)

// access carries out what a packet does to memory: through an address space
// and, for a submission, only to the BOs it listed. SVM ranges of proc are
// reached as the process's own pages.
type access struct {
	sim    *Sim
	vm     *vm
	proc   *kfdProcess
	listed map[*bo]bool // nil: everything that is mapped
	pace   func(n int)  // called after every piece moved; may be nil
}

// paceUnit is how much is moved between two looks at the clock.
const paceUnit = 256 << 10

// resolve takes Sim.mu for the look-up alone.
func (a *access) resolve(va, n uint64, need int) ([]span, error) {
	a.sim.mu.Lock()
	defer a.sim.unlock()
	return a.sim.spans(a, va, n, need)
}

func (a *access) release(spans []span) {
	a.sim.mu.Lock()
	a.sim.releaseSpans(spans)
	a.sim.unlock()
}

// svmSpan finds va in an SVM range of the process that this GPU may use.
//
// Preconditions: Sim.mu is held.
func (a *access) svmSpan(va, n uint64) (span, bool) {
	if a.proc == nil {
		return span{}, false
	}
	r := a.proc.svmRangeAt(va)
	if r == nil || !r.accessible(a.vm.gpu) {
		return span{}, false
	}
	return span{pid: a.proc.pid, off: va, n: min(n, r.start+r.size-va)}, true
}

// remote returns the process memory behind a span, if that is where it lies.
func (sp span) remote() (userRange, bool) {
	switch {
	case sp.bo == nil:
		return userRange{pid: sp.pid, addr: sp.off}, true
	case sp.bo.kind == boUserptr:
		return userRange{pid: sp.bo.user.pid, addr: sp.bo.user.addr + sp.off}, true
	}
	return userRange{}, false
}

// local returns the bytes of a span that lies in simulated memory.
func (sp span) local() []byte { return sp.bo.mem[sp.off : sp.off+sp.n : sp.off+sp.n] }

func (sp span) sub(off, n uint64) span {
	sp.off += off
	sp.n = n
	return sp
}

func (a *access) fault(va uint64, write bool, err error) error {
	return &GPUFault{GPU: a.vm.gpu.cfg.ID, VA: va, Write: write, Reason: err.Error(), cause: err}
}

// read fills buf from GPU addresses.
func (a *access) read(va uint64, buf []byte) error {
	spans, err := a.resolve(va, uint64(len(buf)), vmRead)
	if err != nil {
		return err
	}
	defer a.release(spans)
	for _, sp := range spans {
		if r, ok := sp.remote(); ok {
			if err := readProcess(r.pid, r.addr, buf[:sp.n]); err != nil {
				return a.fault(va, false, err)
			}
		} else {
			copy(buf[:sp.n], sp.local())
		}
		buf, va = buf[sp.n:], va+sp.n
	}
	return nil
}

// write stores buf at GPU addresses.
func (a *access) write(va uint64, buf []byte) error {
	spans, err := a.resolve(va, uint64(len(buf)), vmWrite)
	if err != nil {
		return err
	}
	defer a.release(spans)
	for _, sp := range spans {
		if r, ok := sp.remote(); ok {
			if err := writeProcess(r.pid, r.addr, buf[:sp.n]); err != nil {
				return a.fault(va, true, err)
			}
		} else {
			copy(sp.local(), buf[:sp.n])
		}
		buf, va = buf[sp.n:], va+sp.n
	}
	a.filled(spans)
	return nil
}

func (a *access) readU64(va uint64) (uint64, error) {
	var b [8]byte
	err := a.read(va, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (a *access) writeU64(va, v uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return a.write(va, b[:])
}

// copy moves n bytes between GPU addresses, forward in pieces.
func (a *access) copy(dst, src, n uint64) error {
	from, err := a.resolve(src, n, vmRead)
	if err != nil {
		return err
	}
	defer a.release(from)
	to, err := a.resolve(dst, n, vmWrite)
	if err != nil {
		return err
	}
	defer a.release(to)
	var bounce []byte
	var fromOff, toOff uint64
	for i, j := 0, 0; i < len(from) && j < len(to); {
		k := min(from[i].n-fromOff, to[j].n-toOff, paceUnit)
		s, d := from[i].sub(fromOff, k), to[j].sub(toOff, k)
		if err := moveSpan(d, s, &bounce); err != nil {
			return a.fault(dst, true, err)
		}
		if a.pace != nil {
			a.pace(int(k))
		}
		if fromOff += k; fromOff == from[i].n {
			i, fromOff = i+1, 0
		}
		if toOff += k; toOff == to[j].n {
			j, toOff = j+1, 0
		}
		dst += k
	}
	a.filled(to)
	return nil
}

// moveSpan copies between two spans of the same length.
func moveSpan(d, s span, bounce *[]byte) error {
	dr, dRemote := d.remote()
	sr, sRemote := s.remote()
	switch {
	case !dRemote && !sRemote:
		copy(d.local(), s.local())
		return nil
	case !dRemote:
		return readProcess(sr.pid, sr.addr, d.local())
	case !sRemote:
		return writeProcess(dr.pid, dr.addr, s.local())
	}
	if uint64(len(*bounce)) < s.n {
		*bounce = make([]byte, s.n)
	}
	if err := readProcess(sr.pid, sr.addr, (*bounce)[:s.n]); err != nil {
		return err
	}
	return writeProcess(dr.pid, dr.addr, (*bounce)[:s.n])
}

// each calls fn on n bytes from va as they lie, in pieces of whole 8-byte
// words. write says whether fn changes them.
func (a *access) each(va, n uint64, write bool, fn func(word uint64, b []byte)) error {
	if (va|n)%8 != 0 {
		return a.fault(va, write, fmt.Errorf("%d bytes are not aligned words", n))
	}
	need := vmRead
	if write {
		need |= vmWrite
	}
	spans, err := a.resolve(va, n, need)
	if err != nil {
		return err
	}
	defer a.release(spans)
	var word uint64
	var bounce []byte
	for _, sp := range spans {
		for off := uint64(0); off < sp.n; {
			k := min(sp.n-off, paceUnit)
			part := sp.sub(off, k)
			if r, ok := part.remote(); ok {
				if uint64(len(bounce)) < k {
					bounce = make([]byte, paceUnit)
				}
				if err := readProcess(r.pid, r.addr, bounce[:k]); err != nil {
					return a.fault(va+off, false, err)
				}
				fn(word, bounce[:k])
				if write {
					if err := writeProcess(r.pid, r.addr, bounce[:k]); err != nil {
						return a.fault(va+off, true, err)
					}
				}
			} else {
				fn(word, part.local())
			}
			if a.pace != nil {
				a.pace(int(k))
			}
			word, off = word+k/8, off+k
		}
		va += sp.n
	}
	return nil
}
