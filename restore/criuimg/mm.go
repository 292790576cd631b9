package criuimg

import "google.golang.org/protobuf/encoding/protowire"

// Fields of CRIU's MmEntry and VmaEntry (mm.proto, vma.proto).
const (
	fieldArgStart = 8
	fieldArgEnd   = 9
	fieldEnvStart = 10
	fieldEnvEnd   = 11
	fieldExeFile  = 12
	fieldVMAs     = 14

	fieldStart    = 1
	fieldEnd      = 2
	fieldProt     = 5
	fieldVMAFlags = 6
	fieldStatus   = 7
	fieldMadvise  = 9
)

// Mappings takes the entry of an mm image apart and calls fn for each of its mappings, in order, as CRIU wrote them.
// whole tells that a mapping has its place and flags. A process may have a million, and a hostile image many more: none
// is kept here. It returns the id of the program's file.
func Mappings(name string, b []byte, fn func(v VMA, whole bool) error) (exe uint32, err error) {
	err = fields(name, b, func(num protowire.Number, v uint64, inner []byte) error {
		switch {
		case num == fieldExeFile && inner == nil:
			exe = uint32(v)
		case num == fieldVMAs && inner != nil:
			vma, whole, err := decodeVMA(name, inner)
			if err != nil {
				return err
			}
			return fn(vma, whole)
		}
		return nil
	})
	return exe, err
}

func decodeVMA(name string, b []byte) (w VMA, whole bool, err error) {
	var has [fieldMadvise + 1]bool
	err = fields(name, b, func(num protowire.Number, v uint64, inner []byte) error {
		if inner != nil || num > fieldMadvise {
			return nil
		}
		has[num] = true
		switch num {
		case fieldStart:
			w.Start = v
		case fieldEnd:
			w.End = v
		case fieldProt:
			w.Prot = uint32(v)
		case fieldVMAFlags:
			w.Flags = uint32(v)
		case fieldStatus:
			w.Status = uint32(v)
		case fieldMadvise:
			w.Madvise = v
		}
		return nil
	})
	return w, has[fieldStart] && has[fieldEnd] && has[fieldVMAFlags] && has[fieldStatus], err
}

// titles gives the addresses of a task's arguments and environment from the entry of an mm image. An image may have a
// million mappings: only these fields are decoded.
func titles(name string, b []byte) (args, env Span, err error) {
	err = fields(name, b, func(num protowire.Number, v uint64, inner []byte) error {
		if inner != nil {
			return nil
		}
		switch num {
		case fieldArgStart:
			args.Start = v
		case fieldArgEnd:
			args.End = v
		case fieldEnvStart:
			env.Start = v
		case fieldEnvEnd:
			env.End = v
		}
		return nil
	})
	if err != nil {
		return Span{}, Span{}, err
	}
	return args, env, nil
}

// countVMAs gives the number of mappings in the entry of an mm image.
func countVMAs(b []byte) (n int) {
	for len(b) > 0 {
		num, _, k := protowire.ConsumeField(b)
		if k < 0 {
			return n
		}
		if num == fieldVMAs {
			n++
		}
		b = b[k:]
	}
	return n
}

// fields calls fn for the fields of a message that are varints, with their
// values, and for those that have a length, with their bytes, which are not nil.
func fields(name string, b []byte, fn func(num protowire.Number, v uint64, inner []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return corrupt(name, "%v", protowire.ParseError(n))
		}
		if num > protowire.MaxValidNumber {
			return corrupt(name, "a field of number %d", num)
		}
		b = b[n:]
		var v uint64
		var inner []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			inner, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return corrupt(name, "%v", protowire.ParseError(n))
		}
		b = b[n:]
		if typ != protowire.VarintType && typ != protowire.BytesType {
			continue
		}
		if err := fn(num, v, inner); err != nil {
			return err
		}
	}
	return nil
}
