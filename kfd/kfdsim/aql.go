package kfdsim

import (
	"encoding/binary"
	"fmt"
	"time"
)

// AQL packets are 64 bytes (HSA platform system architecture 1.2, section
// 2.9). A queue's read and write pointers count packets.
const (
	aqlPacket = 64

	aqlVendor      = 0
	aqlInvalid     = 1
	aqlDispatch    = 2
	aqlBarrierAnd  = 3
	aqlBarrierOr   = 5
	aqlTypeMask    = 0xff
	aqlMaxDepSigns = 5
)

// Offsets in an amd_signal_t, as the command processor uses it.
const (
	signalValue   = 8
	signalMailbox = 16
	signalEvent   = 24
)

// KernelMagic begins the code object of a simulated kernel, KernelOp follows
// as a u64: the machine code that this GPU understands. It lies in a BO, so a
// restore that loses the BO's contents loses the program.
const KernelMagic = 0x4c454e52454b5347 // "GSKERNEL"

// KernelOp is what a simulated kernel does with its arguments, five u64 at the
// packet's kernarg address: dst, src, n (bytes, a multiple of 8), value, out.
type KernelOp uint64

// Kernels. Words are little-endian u64.
const (
	KernelFill    KernelOp = 1 // dst[i] = value
	KernelAdd     KernelOp = 2 // dst[i] += value
	KernelPattern KernelOp = 3 // dst[i] = Mix(value + i)
	KernelHash    KernelOp = 4 // *out = Σ src[i]·(Mix(i)|1)
	KernelCopy    KernelOp = 5 // dst = src
	KernelSleep   KernelOp = 6 // value nanoseconds
)

// Mix is splitmix64's finaliser, the generator of KernelPattern and the
// weights of KernelHash.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func faultf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// stepAQL carries out the packet at the read pointer. wptr is the doorbell:
// the number of the last packet, or 0 before the first; a valid header tells
// which.
func (q *queue) stepAQL(a *access, base, size, wptr uint64) (bool, error) {
	if q.rptr > wptr {
		return false, nil
	}
	slots := size / aqlPacket
	if wptr-q.rptr >= slots {
		return false, faultf("doorbell %d with read index %d on a ring of %d packets", wptr, q.rptr, slots)
	}
	at := base + q.rptr%slots*aqlPacket
	var pkt [aqlPacket]byte
	if err := a.read(at, pkt[:]); err != nil {
		return false, err
	}
	var err error
	switch typ := binary.LittleEndian.Uint16(pkt[:]) & aqlTypeMask; typ {
	case aqlInvalid:
		return false, nil
	case aqlVendor:
		if wptr == 0 {
			return false, nil // a ring never written to is all zero
		}
		return false, faultf("vendor specific aql packet at index %d", q.rptr)
	case aqlDispatch:
		err = q.dispatch(a, pkt[:])
	case aqlBarrierAnd:
		err = barrier(a, pkt[:], true)
	case aqlBarrierOr:
		err = barrier(a, pkt[:], false)
	default:
		return false, faultf("aql packet of type %d at index %d", typ, q.rptr)
	}
	if err != nil {
		return false, err
	}
	// The packet processor gives the slot back before it tells anyone.
	if err := a.write(at, []byte{aqlInvalid, 0}); err != nil {
		return false, err
	}
	q.rptr++
	if err := a.writeU64(q.rptrAddr, q.rptr); err != nil {
		return false, err
	}
	return true, q.complete(a, binary.LittleEndian.Uint64(pkt[56:]))
}

// complete decrements a completion signal and, when the signal names an event,
// marks its slot and interrupts.
func (q *queue) complete(a *access, signal uint64) error {
	if signal == 0 {
		return nil
	}
	v, err := a.readU64(signal + signalValue)
	if err != nil {
		return err
	}
	if err := a.writeU64(signal+signalValue, v-1); err != nil {
		return err
	}
	mailbox, err := a.readU64(signal + signalMailbox)
	if err != nil || mailbox == 0 {
		return err
	}
	var id [4]byte
	if err := a.read(signal+signalEvent, id[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(id[:])
	if err := a.writeU64(mailbox, uint64(n)); err != nil {
		return err
	}
	q.proc.interrupt(n)
	return nil
}

// barrier waits for the dependent signals to be zero: all, or any one.
func barrier(a *access, pkt []byte, all bool) error {
	named, met := 0, 0
	for i := range aqlMaxDepSigns {
		signal := binary.LittleEndian.Uint64(pkt[8+8*i:])
		if signal == 0 {
			continue
		}
		v, err := a.readU64(signal + signalValue)
		if err != nil {
			return err
		}
		named++
		if v == 0 {
			met++
		}
	}
	if named > 0 && (met == 0 || all && met < named) {
		return errBlocked
	}
	return nil
}

// dispatch runs a kernel.
func (q *queue) dispatch(a *access, pkt []byte) error {
	object := binary.LittleEndian.Uint64(pkt[32:])
	kernarg := binary.LittleEndian.Uint64(pkt[40:])
	magic, err := a.readU64(object)
	if err != nil {
		return err
	}
	if magic != KernelMagic {
		return faultf("illegal instruction: %#x at kernel object %#x", magic, object)
	}
	op, err := a.readU64(object + 8)
	if err != nil {
		return err
	}
	var raw [40]byte
	if err := a.read(kernarg, raw[:]); err != nil {
		return err
	}
	var arg [5]uint64
	for i := range arg {
		arg[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return q.kernel(a, KernelOp(op), arg[0], arg[1], arg[2], arg[3], arg[4])
}

func (q *queue) kernel(a *access, op KernelOp, dst, src, n, value, out uint64) error {
	switch op {
	case KernelFill:
		return a.each(dst, n, true, func(_ uint64, b []byte) { fillWords(b, value) })
	case KernelAdd:
		return a.each(dst, n, true, func(_ uint64, b []byte) { addWords(b, value) })
	case KernelPattern:
		return a.each(dst, n, true, func(word uint64, b []byte) { patternWords(b, value+word) })
	case KernelHash:
		sum, err := a.hash(src, n)
		if err != nil {
			return err
		}
		return a.writeU64(out, sum)
	case KernelCopy:
		return a.copy(dst, src, n)
	case KernelSleep:
		select {
		case <-q.stop:
		case <-time.After(time.Duration(value)):
		}
		return nil
	}
	return faultf("illegal instruction: kernel operation %d", op)
}

// The loops below run over memory that applications write meanwhile. The race
// detector knows nothing of those, and would make a test ten times as long.

//go:norace
func fillWords(b []byte, value uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], value)
	}
}

//go:norace
func addWords(b []byte, value uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], binary.LittleEndian.Uint64(b[i:])+value)
	}
}

//go:norace
func patternWords(b []byte, seed uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], Mix(seed+uint64(i)/8))
	}
}

// hash computes KernelHash over GPU addresses.
func (a *access) hash(src, n uint64) (uint64, error) {
	var sum uint64
	err := a.each(src, n, false, func(word uint64, b []byte) { sum += HashWords(word, b) })
	return sum, err
}

// HashWords is KernelHash of bytes (a multiple of 8 of them) that begin at word
// number first; hashes of consecutive pieces add up.
//
//go:norace
func HashWords(first uint64, b []byte) uint64 {
	var sum uint64
	for i := 0; i+8 <= len(b); i += 8 {
		sum += binary.LittleEndian.Uint64(b[i:]) * (Mix(first+uint64(i)/8) | 1)
	}
	return sum
}
