package bounded

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// encodings are messages of all shapes, n bytes each or a little more; many of them take many times as much once
// decoded.
func encodings(n int) map[string][]byte {
	repeat := func(field []byte) []byte { return bytes.Repeat(field, n/len(field)+1) }
	bytesField := func(num protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	varint := func(num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
	}
	deep := []byte{}
	for range 40 {
		deep = bytesField(3, deep)
	}
	// Numbers are those of google.protobuf.DescriptorProto and what lies in it.
	return map[string][]byte{
		"empty messages":     repeat(bytesField(2, nil)),
		"nested messages":    repeat(deep),
		"nested lists":       repeat(bytesField(3, repeatUpTo(bytesField(2, nil), 1000))),
		"numbers":            repeat(varint(999, 1)),
		"strings":            repeat(bytesField(10, []byte("x"))),
		"empty strings":      repeat(bytesField(10, nil)),
		"one string":         bytesField(10, make([]byte, n)),
		"the same string":    repeat(bytesField(1, []byte("name"))),
		"unknown numbers":    repeat(varint(500, 5)),
		"unknown bytes":      repeat(bytesField(500, []byte("abc"))),
		"options":            repeat(bytesField(7, varint(1, 1))),
		"wrong type":         repeat(varint(2, 1)),
		"reserved ranges":    repeat(bytesField(9, append(varint(1, 3), varint(2, 9)...))),
		"enums, not packed":  repeat(bytesField(8, bytesField(2, nil))),
		"unknown groups":     repeat([]byte{0xbb, 0x1f, 0xbc, 0x1f}),
		"message in pieces":  repeat(bytesField(7, nil)),
		"options with lists": repeat(bytesField(7, bytesField(999, bytesField(2, nil)))),
	}
}

func repeatUpTo(b []byte, n int) []byte { return bytes.Repeat(b, n/len(b)+1) }

// TestCostIsWhatDecodingTakes: decoding takes about what was told before.
func TestCostIsWhatDecodingTakes(t *testing.T) {
	for name, b := range encodings(1 << 20) {
		m := &descriptorpb.DescriptorProto{}
		said := Cost(b, m, math.MaxInt64)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(b, m)
		runtime.ReadMemStats(&after)
		took := int64(after.TotalAlloc - before.TotalAlloc)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// What is not in lists is merged: it costs less than is told, and no message has much of it.
		merged := name == "the same string" || name == "message in pieces" || strings.HasPrefix(name, "options")
		if took > said+said/slack+1<<16 || said > 3*took+1<<16 && !merged {
			t.Errorf("%s: %d bytes take %d, %d were told", name, len(b), took, said)
		}
	}
}

func TestBudget(t *testing.T) {
	var g Budget
	small, err := proto.Marshal(&descriptorpb.DescriptorProto{Name: proto.String("a"), ReservedName: []string{"b"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := g.Unmarshal(proto.UnmarshalOptions{}, small, &descriptorpb.DescriptorProto{}); err != nil {
			t.Fatal(err)
		}
	}
	bomb := encodings(8 << 20)["empty messages"]
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := g.Unmarshal(proto.UnmarshalOptions{}, bomb, &descriptorpb.DescriptorProto{}); !errors.Is(err, ErrBudget) {
		t.Errorf("got %v", err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<16 {
		t.Errorf("the refusal took %d bytes", n)
	}
	// What is left is shared.
	var h Budget
	n := 0
	if err := h.Take(1, 0); err != nil {
		t.Fatal(err)
	}
	for ; n < 1000 && h.Unmarshal(proto.UnmarshalOptions{}, encodings(1 << 17)["empty messages"],
		&descriptorpb.DescriptorProto{}) == nil; n++ {
	}
	if n == 0 || n == 1000 {
		t.Errorf("%d messages in one budget", n)
	}
	// A type that contains itself.
	deep := []byte{}
	for range 1000 {
		deep = protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType),
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), deep))
	}
	if err := h.Unmarshal(proto.UnmarshalOptions{}, deep, &structpb.Value{}); !errors.Is(err, ErrBudget) {
		t.Errorf("a thousand messages within each other: %v", err)
	}
}

func FuzzCost(f *testing.F) {
	for _, b := range encodings(200) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &descriptorpb.DescriptorProto{}
		said := Cost(b, m, math.MaxInt64)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(b, m)
		runtime.ReadMemStats(&after)
		if took := int64(after.TotalAlloc - before.TotalAlloc); err == nil && took > 4*said+1<<20 {
			t.Errorf("%d bytes take %d, %d were told", len(b), took, said)
		}
	})
}
