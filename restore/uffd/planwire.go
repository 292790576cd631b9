package uffd

import (
	"encoding/binary"
	"errors"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// A plan goes to the guardian while CRIU waits to be asked, and may have tens of
// thousands of ranges: as words of 8 bytes, little-endian, it takes a third of
// the time that gob needs for it. Lists begin with their length.

var errPlan = errors.New("a plan that ends early or goes on too long")

// MarshalBinary is encoding.BinaryMarshaler.
func (p *Plan) MarshalBinary() ([]byte, error) {
	n := 0
	for i := range p.Tasks {
		n += 5 + 5*len(p.Tasks[i].VMAs) + 4*len(p.Tasks[i].Ranges) + 3*len(p.Tasks[i].First)
	}
	b := make([]byte, 0, 8*(n+2)+64*len(p.Files))
	put := func(words ...uint64) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	put(uint64(len(p.Files)))
	for _, f := range p.Files {
		put(uint64(len(f)))
		b = append(b, f...)
	}
	put(uint64(len(p.Tasks)))
	for i := range p.Tasks {
		t := &p.Tasks[i]
		dead := uint64(0)
		if t.Dead {
			dead = 1
		}
		put(uint64(t.PID), dead, uint64(len(t.VMAs)))
		for _, v := range t.VMAs {
			put(v.Start, v.End, uint64(v.Prot)|uint64(v.Flags)<<32, uint64(v.Status), v.Madvise)
		}
		put(uint64(len(t.Ranges)))
		for _, r := range t.Ranges {
			put(r.Start, r.End, uint64(r.File), uint64(r.Off))
		}
	}
	for i := range p.Tasks {
		first := p.Tasks[i].First
		put(uint64(len(first)))
		for _, r := range first {
			put(uint64(r.File), uint64(r.Off), uint64(r.Len))
		}
	}
	return b, nil
}

// UnmarshalBinary is encoding.BinaryUnmarshaler. Validate has to check what it makes of foreign bytes.
func (p *Plan) UnmarshalBinary(b []byte) error {
	bad := false
	get := func() (w uint64) {
		if len(b) < 8 {
			bad = true
			return 0
		}
		w, b = binary.LittleEndian.Uint64(b), b[8:]
		return w
	}
	// length is that of a list whose elements take each bytes at least.
	length := func(each int) int {
		n := get()
		if n > uint64(len(b)/each) {
			bad = true
			return 0
		}
		return int(n)
	}
	*p = Plan{}
	for range length(8) {
		n := length(1)
		p.Files = append(p.Files, string(b[:n]))
		b = b[n:]
	}
	p.Tasks = make([]PlanTask, length(4*8))
	for i := range p.Tasks {
		t := &p.Tasks[i]
		t.PID, t.Dead = int(get()), get() != 0
		t.VMAs = make([]criuimg.VMA, length(5*8))
		for j := range t.VMAs {
			v := criuimg.VMA{Start: get(), End: get()}
			w := get()
			v.Prot, v.Flags = uint32(w), uint32(w>>32)
			v.Status, v.Madvise = uint32(get()), get()
			t.VMAs[j] = v
		}
		t.Ranges = make([]PlanRange, length(4*8))
		for j := range t.Ranges {
			t.Ranges[j] = PlanRange{Start: get(), End: get(), File: int(get()), Off: int64(get())}
		}
	}
	if len(b) == 0 && !bad {
		return nil // of an earlier build, whose guardian has started a provider of this one
	}
	for i := range p.Tasks {
		t := &p.Tasks[i]
		for range length(3 * 8) {
			t.First = append(t.First, prefetch.Range{File: int(get()), Off: int64(get()), Len: int64(get())})
		}
	}
	if bad || len(b) > 0 {
		return errPlan
	}
	return nil
}
