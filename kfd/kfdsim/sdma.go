package kfdsim

import (
	"encoding/binary"
	"fmt"
)

// SDMAVersion is a generation of SDMA packets.
type SDMAVersion int

// Generations, after the IP versions of the driver's sdma_v*.c.
const (
	SDMAv2 SDMAVersion = 2 + iota // CIK, and 2.4 in Iceland
	SDMAv3                        // VI
	SDMAv4                        // GFX9
	SDMAv5                        // GFX10
	SDMAv6                        // GFX11
	SDMAv7                        // GFX12
)

// MaxCopy returns the most bytes that one linear copy packet moves
// (copy_max_bytes of amdgpu_buffer_funcs).
func (v SDMAVersion) MaxCopy() uint64 {
	switch v {
	case SDMAv2:
		return 0x1fffff
	case SDMAv3:
		return 0x3fffe0
	}
	return 0x400000
}

// count turns a packet's count field into bytes: one less than them since v4.
func (v SDMAVersion) count(field uint32) uint64 {
	if v >= SDMAv4 {
		return uint64(field) + 1
	}
	return uint64(field)
}

// SDMA operations, the low byte of a packet's header; the next is the
// sub-operation.
const (
	sdmaNop       = 0
	sdmaCopy      = 1
	sdmaWrite     = 2
	sdmaFence     = 5
	sdmaTrap      = 6
	sdmaPollMem   = 8
	sdmaAtomic    = 10
	sdmaConstFill = 11
	sdmaTimestamp = 13
	sdmaGCR       = 17 // cache control, v5 and later
)

// Bits of a header that v7 needs: what a copy says of compression in its last
// dword counts, a fill compresses. An engine goes on without them and corrupts data
// now and then; this one stops. Earlier ones have other meanings for these bits,
// which are not modelled.
const (
	sdmaCopyCPV      = 1 << 19
	sdmaFillCompress = 1 << 16
)

// compression refuses a header that does not say of compression what it should.
func (v SDMAVersion) compression(header, bit uint32) error {
	if set := header&bit != 0; set != (v >= SDMAv7) {
		return faultf("sdma header %#x with bit %#x set: %v, in generation %d", header, bit, set, v)
	}
	return nil
}

// sdmaRun interprets packets over an access. proc receives traps of user
// queues; nil for submissions of the DRM side.
type sdmaRun struct {
	*access
	version SDMAVersion
	proc    *kfdProcess
}

// run interprets an indirect buffer to its end.
func (x *sdmaRun) run(ib []byte) error {
	for at := uint64(0); at < uint64(len(ib)); {
		used, err := x.packet(ib[at:])
		if err != nil {
			return fmt.Errorf("packet at byte %#x: %w", at, err)
		}
		at += used
	}
	return nil
}

// packet carries out the packet b begins with and returns its length in bytes.
func (x *sdmaRun) packet(b []byte) (uint64, error) {
	dw := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	qw := func(i int) uint64 { return uint64(dw(i)) | uint64(dw(i+1))<<32 }
	have := len(b) / 4
	if have == 0 {
		return 0, faultf("truncated packet")
	}
	header := dw(0)
	op, sub := header&0xff, header>>8&0xff
	need := func(n int) error {
		if have < n {
			return faultf("sdma operation %d.%d of %d dwords is cut off after %d", op, sub, n, have)
		}
		return nil
	}
	switch op {
	case sdmaNop:
		n := 1 + int(header>>16&0x3fff)
		return uint64(4 * n), need(n)

	case sdmaCopy:
		n := 7
		if x.version >= SDMAv7 {
			n = 8
		}
		if sub != 0 {
			return 0, faultf("sdma copy of kind %d is not modelled", sub)
		}
		if err := need(n); err != nil {
			return 0, err
		}
		if err := x.version.compression(header, sdmaCopyCPV); err != nil {
			return 0, err
		}
		size := x.version.count(dw(1))
		if size > x.version.MaxCopy() || size == 0 {
			return 0, faultf("linear copy of %#x bytes, at most %#x in a packet", size, x.version.MaxCopy())
		}
		return uint64(4 * n), x.copy(qw(5), qw(3), size)

	case sdmaConstFill:
		if err := need(5); err != nil {
			return 0, err
		}
		if err := x.version.compression(header, sdmaFillCompress); err != nil {
			return 0, err
		}
		return 20, x.fill(qw(1), x.version.count(dw(4)), dw(3), header>>30)

	case sdmaWrite:
		if sub != 0 {
			return 0, faultf("sdma write of kind %d is not modelled", sub)
		}
		if err := need(5); err != nil {
			return 0, err
		}
		words := x.version.count(dw(3) & 0xfffff)
		n := 4 + int(words)
		if err := need(n); err != nil {
			return 0, err
		}
		return uint64(4 * n), x.write(qw(1), b[16:16+4*words])

	case sdmaFence:
		if err := need(4); err != nil {
			return 0, err
		}
		return 16, x.write(qw(1), b[12:16])

	case sdmaTrap:
		if err := need(2); err != nil {
			return 0, err
		}
		if x.proc != nil {
			x.proc.interrupt(dw(1) & 0xfffffff)
		}
		return 8, nil

	case sdmaPollMem:
		if err := need(6); err != nil {
			return 0, err
		}
		return 24, x.poll(header, qw(1), dw(3), dw(4))

	case sdmaAtomic:
		if err := need(8); err != nil {
			return 0, err
		}
		return 32, x.atomic(header, qw(1), qw(3))

	case sdmaTimestamp:
		return 12, need(3)

	case sdmaGCR:
		if x.version >= SDMAv5 {
			return 20, need(5)
		}
	}
	return 0, faultf("illegal sdma operation %d.%d (header %#x)", op, sub, header)
}

// fill stores a value over a range: bytes when unit is 0, dwords when 2.
func (x *sdmaRun) fill(dst, n uint64, value, unit uint32) error {
	var pattern [4]byte
	switch {
	case unit == 0:
		for i := range pattern {
			pattern[i] = byte(value)
		}
	case unit == 2 && (dst|n)%4 == 0:
		binary.LittleEndian.PutUint32(pattern[:], value)
	default:
		return faultf("constant fill of %#x bytes at %#x in units of kind %d", n, dst, unit)
	}
	limit := uint64(1) << 22
	if n > limit {
		return faultf("constant fill of %#x bytes, at most %#x in a packet", n, limit)
	}
	spans, err := x.resolve(dst, n, vmWrite)
	if err != nil {
		return err
	}
	defer x.release(spans)
	block := make([]byte, min(n, paceUnit))
	for i := range block {
		block[i] = pattern[i%4]
	}
	for _, sp := range spans {
		for off := uint64(0); off < sp.n; {
			k := min(sp.n-off, uint64(len(block)))
			part := sp.sub(off, k)
			if r, ok := part.remote(); ok {
				if err := writeProcess(r.pid, r.addr, block[:k]); err != nil {
					return x.fault(dst+off, true, err)
				}
			} else {
				copy(part.local(), block)
			}
			if x.pace != nil {
				x.pace(int(k))
			}
			off += k
		}
		dst += sp.n
	}
	x.filled(spans)
	return nil
}

// poll compares a dword of memory with a reference under a mask; the queue
// waits when the function in the header's bits 28–30 does not hold.
func (x *sdmaRun) poll(header uint32, addr uint64, ref, mask uint32) error {
	if header>>31 == 0 {
		return faultf("poll of a register is not modelled")
	}
	var b [4]byte
	if err := x.read(addr, b[:]); err != nil {
		return err
	}
	got := binary.LittleEndian.Uint32(b[:]) & mask
	met := false
	switch header >> 28 & 7 {
	case 0:
		met = true
	case 1:
		met = got < ref
	case 2:
		met = got <= ref
	case 3:
		met = got == ref
	case 4:
		met = got != ref
	case 5:
		met = got >= ref
	case 6:
		met = got > ref
	default:
		return faultf("poll function %d", header>>28&7)
	}
	if !met {
		return errBlocked
	}
	return nil
}

// atomicAdd64 is TC_OP_ATOMIC_ADD_RTN_64, what ROCr signals completion with.
const atomicAdd64 = 0x2f

func (x *sdmaRun) atomic(header uint32, addr, value uint64) error {
	if op := header >> 25; op != atomicAdd64 {
		return faultf("sdma atomic %#x is not modelled", op)
	}
	v, err := x.readU64(addr)
	if err != nil {
		return err
	}
	return x.writeU64(addr, v+value)
}
