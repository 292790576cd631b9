package criuimg

import "google.golang.org/protobuf/encoding/protowire"

// entry is a PagemapEntry of CRIU's pagemap.proto. A process with a GPU has
// tens of thousands, and its restore waits for them: most of the time went into
// messages made for each.
type entry struct {
	vaddr uint64
	pages uint64
	flags uint32
}

// Fields of PagemapEntry, all varints.
const (
	fieldVaddr    = 1 // required
	fieldCompat   = 2 // nr_pages as uint32, required
	fieldInParent = 3 // from before there were flags
	fieldFlags    = 4
	fieldPages    = 5 // since CRIU 4.1 in place of 2
)

// decodeEntry takes an entry of the image name apart.
func decodeEntry(name string, b []byte) (e entry, err error) {
	var has [fieldPages + 1]bool
	var values [fieldPages + 1]uint64
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return e, corrupt(name, "%v", protowire.ParseError(n))
		}
		if num > protowire.MaxValidNumber {
			return e, corrupt(name, "a field of number %d", num)
		}
		b = b[n:]
		if num > fieldPages || typ != protowire.VarintType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return e, corrupt(name, "%v", protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return e, corrupt(name, "%v", protowire.ParseError(n))
		}
		has[num], values[num] = true, v
		b = b[n:]
	}
	if !has[fieldVaddr] || !has[fieldCompat] {
		return e, corrupt(name, "an entry lacks its address or length")
	}
	e = entry{vaddr: values[fieldVaddr], pages: values[fieldPages], flags: uint32(values[fieldFlags])}
	switch {
	case values[fieldInParent] != 0:
		e.flags |= peParent
	case !has[fieldFlags]:
		e.flags = pePresent
	}
	if !has[fieldPages] {
		e.pages = uint64(uint32(values[fieldCompat]))
	}
	return e, nil
}
