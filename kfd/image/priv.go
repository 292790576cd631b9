package image

import (
	"encoding/binary"
	"fmt"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// PrivData is the blob that the KFD hands to CRIU, version 1: what it knows of
// a process beyond devices and BO ranges. abi has the structures.
type PrivData struct {
	XNACKMode uint32
	Devices   []abi.KFDPrivDevice
	BOs       []abi.KFDPrivBO
	Queues    []PrivQueue
	Events    []abi.KFDPrivEvent
	Ranges    []PrivRange
}

// PrivQueue is a user-mode queue with its state.
type PrivQueue struct {
	abi.KFDPrivQueue
	MQD      []byte // memory queue descriptor, of the hardware's own layout
	CtlStack []byte
}

// PrivRange is a range of shared virtual memory. Its pages are ordinary pages
// of the process; only these attributes are the KFD's.
type PrivRange struct {
	abi.KFDPrivSVMRange
	Attrs []abi.KFDSVMAttribute
}

// ParsePrivData parses the private data of a process image that counts these
// GPUs, BOs and objects. All of b must be accounted for. Errors are
// [ErrCorrupt], or [ErrUnsupported] for another version.
func ParsePrivData(b []byte, gpus, bos int, objects uint32) (*PrivData, error) {
	r := &privReader{b: b}
	var head abi.KFDPrivProcess
	r.next(&head)
	if r.err == nil && head.Version != abi.KFDPrivVersion {
		return nil, fmt.Errorf("private data of version %d, only %d is known: %w", head.Version, abi.KFDPrivVersion,
			ErrUnsupported)
	}
	p := &PrivData{XNACKMode: head.XNACKMode}
	for i := 0; i < gpus && r.err == nil; i++ {
		p.Devices = append(p.Devices, abi.KFDPrivDevice{})
		r.next(&p.Devices[i])
	}
	for i := 0; i < bos && r.err == nil; i++ {
		p.BOs = append(p.BOs, abi.KFDPrivBO{})
		r.next(&p.BOs[i])
	}
	for ; objects > 0 && r.err == nil; objects-- {
		p.object(r, gpus)
	}
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("private data goes on for %d bytes behind its last object: %w", len(r.b), ErrCorrupt)
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// object parses one queue, event or range.
func (p *PrivData) object(r *privReader, gpus int) {
	if len(r.b) < 4 {
		r.err = fmt.Errorf("private data ends before its last object: %w", ErrCorrupt)
		return
	}
	switch kind := binary.NativeEndian.Uint32(r.b); kind {
	case abi.KFDPrivObjectQueue:
		var q PrivQueue
		r.next(&q.KFDPrivQueue)
		q.MQD = r.bytes(q.MQDSize)
		q.CtlStack = r.bytes(q.CtlStackSize)
		p.Queues = append(p.Queues, q)
	case abi.KFDPrivObjectEvent:
		var e abi.KFDPrivEvent
		r.next(&e)
		p.Events = append(p.Events, e)
	case abi.KFDPrivObjectSVMRange:
		var s PrivRange
		r.next(&s.KFDPrivSVMRange)
		for i := 0; i < abi.KFDPrivSVMCommonAttrs+gpus && r.err == nil; i++ {
			s.Attrs = append(s.Attrs, abi.KFDSVMAttribute{})
			r.next(&s.Attrs[i])
		}
		p.Ranges = append(p.Ranges, s)
	default:
		r.err = fmt.Errorf("private data has an object of type %d: %w", kind, ErrUnsupported)
	}
}

// Objects returns the number of objects, as a process image counts them.
func (p *PrivData) Objects() uint32 {
	return uint32(len(p.Queues) + len(p.Events) + len(p.Ranges))
}

// Append appends the blob to b, objects in the kernel's order: queues, events,
// ranges.
func (p *PrivData) Append(b []byte) []byte {
	put := func(v any) {
		// Every structure of abi has a fixed size: appending cannot fail.
		b, _ = binary.Append(b, binary.NativeEndian, v)
	}
	put(abi.KFDPrivProcess{Version: abi.KFDPrivVersion, XNACKMode: p.XNACKMode})
	put(p.Devices)
	put(p.BOs)
	for _, q := range p.Queues {
		put(q.KFDPrivQueue)
		b = append(append(b, q.MQD...), q.CtlStack...)
	}
	put(p.Events)
	for _, s := range p.Ranges {
		put(s.KFDPrivSVMRange)
		put(s.Attrs)
	}
	return b
}

// privReader consumes b until an error.
type privReader struct {
	b   []byte
	err error
}

func (r *privReader) next(v any) {
	n := binary.Size(v)
	if b := r.bytes(uint32(n)); r.err == nil {
		r.err = abi.Decode(b, v)
	}
}

func (r *privReader) bytes(n uint32) []byte {
	if r.err == nil && uint64(n) > uint64(len(r.b)) {
		r.err = fmt.Errorf("private data ends %d bytes into an item of %d: %w", len(r.b), n, ErrCorrupt)
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}
