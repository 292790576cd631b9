// Package bounded decodes protobuf messages from outside within a budget of memory.
//
// An encoded message of two bytes an entry takes a hundred times as much once it is decoded, and the process that
// decodes it is one that others live on. So an encoding is looked through before anything is made of it: what each of
// its fields will take is known from the Go types, and the sum is held against the budget. The look is linear in the
// encoding's length, whatever is nested in what, and allocates nothing.
package bounded

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A decoded message may take Factor bytes for each byte of its encoding, which is in memory beside it; what it takes
// beyond is taken from Free, once for all messages of one budget.
const (
	Free   = 64 << 20
	Factor = 3
)

// maxDepth bounds messages within messages.
const maxDepth = 64

// ErrBudget marks an encoding that would take too much memory. It is none that a sound program writes.
var ErrBudget = errors.New("it would take far more memory than its length tells")

// Budget is what some messages may take together. The zero value is ready; one goroutine at a time.
type Budget struct{ used int64 }

// small is an encoding that is not looked through: two bytes become some 500 at most, and images have millions of such
// entries.
const small = 32 << 10

// Unmarshal decodes b into m as o says. It fails with ErrBudget before it allocates what it may not.
func (g *Budget) Unmarshal(o proto.UnmarshalOptions, b []byte, m proto.Message) error {
	if g.used == 0 && len(b) <= small {
		return o.Unmarshal(b, m)
	}
	if err := g.Take(Cost(b, m, g.Left(len(b))), len(b)); err != nil {
		return err
	}
	return o.Unmarshal(b, m)
}

// Left gives how much something may take of which n bytes lie on disk.
func (g *Budget) Left(n int) int64 { return Free - g.used + Factor*int64(n) }

// Take takes cost bytes of memory for something of which n bytes lie on disk.
func (g *Budget) Take(cost int64, n int) error {
	if cost > g.Left(n) {
		return fmt.Errorf("%w: %d MiB or more for %d KiB", ErrBudget, cost>>20, n>>10)
	}
	g.used += max(0, cost-Factor*int64(n))
	return nil
}

// Cost gives the memory that decoding b into a message like m takes at most, in bytes, what becomes garbage meanwhile
// included. It looks no further than the first thing that is malformed, or where the sum passes limit.
func Cost(b []byte, m proto.Message, limit int64) int64 {
	return planOf(m.ProtoReflect().Type()).cost(b, limit, 0)
}

// plan is what a type of messages costs.
type plan struct {
	size   int64 // of its Go struct
	fields map[protowire.Number]field
}

type field struct {
	repeated bool
	wire     protowire.Type
	elem     int64 // bytes of one element of a list of scalars; 0 for others
	child    *plan // of a message
}

var plans sync.Map // of *plan, by protoreflect.FullName

func planOf(t protoreflect.MessageType) *plan {
	name := t.Descriptor().FullName()
	if p, ok := plans.Load(name); ok {
		return p.(*plan)
	}
	p := build(t, map[protoreflect.FullName]*plan{})
	plans.Store(name, p)
	return p
}

// build makes the plan of a type; under way are those in which it lies, itself perhaps included.
func build(t protoreflect.MessageType, under map[protoreflect.FullName]*plan) *plan {
	d := t.Descriptor()
	if p := under[d.FullName()]; p != nil {
		return p
	}
	p := &plan{size: round(int64(reflect.TypeOf(t.Zero().Interface()).Elem().Size())),
		fields: map[protowire.Number]field{}}
	under[d.FullName()] = p
	one := t.New()
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := field{repeated: fd.IsList() || fd.IsMap()}
		switch {
		case fd.IsMap():
			f.elem = 64 // about what an entry takes, none of our messages has any
		case fd.Message() != nil && fd.IsList():
			f.child = build(one.NewField(fd).List().NewElement().Message().Type(), under)
		case fd.Message() != nil:
			f.child = build(one.NewField(fd).Message().Type(), under)
		default:
			f.elem, f.wire = elemSize(fd.Kind()), wireType(fd.Kind())
		}
		p.fields[fd.Number()] = f
	}
	return p
}

// round gives what the allocator makes of n bytes, roughly.
func round(n int64) int64 { return (n + n/8 + 15) &^ 15 }

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.BytesKind, protoreflect.StringKind:
		return protowire.BytesType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

func elemSize(k protoreflect.Kind) int64 {
	switch k {
	case protoreflect.BytesKind:
		return 24
	case protoreflect.StringKind:
		return 16
	case protoreflect.BoolKind:
		return 1
	case protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Sint32Kind, protoreflect.Fixed32Kind,
		protoreflect.Sfixed32Kind, protoreflect.FloatKind,
		protoreflect.EnumKind:
		return 4
	}
	return 8
}

// cost is Cost of one message.
func (p *plan) cost(b []byte, limit int64, depth int) int64 {
	sum := p.size
	if depth > maxDepth {
		return limit + 1
	}
	for len(b) > 0 && sum <= limit {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return sum
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return sum
		}
		value := b[n : n+m]
		whole := int64(n + m)
		b = b[n+m:]
		f, known := p.fields[num]
		switch {
		case !known || typ == protowire.StartGroupType:
			sum += 5 * whole // kept as it is, in a buffer that grows
		case f.child != nil && typ == protowire.BytesType:
			inner, _ := protowire.ConsumeBytes(value)
			sum += 24 + f.child.cost(inner, limit-sum, depth+1) // a pointer, in a list that grows
		case typ == protowire.BytesType && f.repeated && f.elem <= 8:
			packed, _ := protowire.ConsumeBytes(value)
			sum += 3 * f.elem * int64(numbers(packed))
		case typ == protowire.BytesType:
			sum += whole + 16 + 5*f.elem // the bytes, and a header, in a list perhaps
		case typ == f.wire && f.child == nil && f.repeated:
			sum += 3 * f.elem // a number in a list that grows
		case typ == f.wire && f.child == nil:
			sum += 8 // a number that something points to
		default:
			sum += 5 * whole // of another type: kept as it is
		}
	}
	return sum
}

// numbers gives how many numbers there are in a packed field, at most: those of fixed size are fewer.
func numbers(packed []byte) (n int) {
	for _, c := range packed {
		if c < 0x80 {
			n++
		}
	}
	return n
}
