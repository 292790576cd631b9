package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

var store = [16]byte{7, 7, 7}

func name(i int) Name { return Name{1, 2, 3, 19: byte(i)} }

func TestName(t *testing.T) {
	n := Name{0xab, 16: 0, 1, 0, 2}
	if s := n.String(); s != "ab000000000000000000000000000000-65538" {
		t.Errorf("%s", s)
	} else if got, err := ParseName(s); got != n || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "-", "ab-1", n.String() + "x", "AB000000000000000000000000000000-1", n.String()[:33],
		"ab000000000000000000000000000000-01",
		"ab000000000000000000000000000000-4294967296", "../00000000000000000000000000000-1"} {
		if _, err := ParseName(s); err == nil {
			t.Errorf("%q is taken for a name", s)
		}
	}
}

// slotOf gives a chunk of n bytes with its slot.
func slotOf(seed uint64, n int) (chunk.ID, pack.Loc, []byte) {
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	loc := pack.Loc{Pack: 99, Page: 12345, Stored: uint32(n), Raw: uint32(n), Codec: chunk.Raw}
	slot := make([]byte, loc.Slot())
	copy(slot, data)
	loc.CRC = crc32c.Checksum(slot)
	return chunk.Sum(data), loc, slot
}

// TestPackObject puts chunks of many sizes into an object and finds each at the place that both Add and the object
// tell.
func TestPackObject(t *testing.T) {
	var p Packer
	for round := range 2 { // the second in the same buffers
		p.Reset()
		want := map[chunk.ID][]byte{}
		var told []pack.Chunk
		for i := range 3000 {
			id, loc, slot := slotOf(uint64(i+round), 1+(i*7919)%20000)
			at, full := p.Add(id, loc, slot)
			if full {
				t.Fatal("full")
			}
			want[id] = slot
			told = append(told, pack.Chunk{ID: id, Loc: at})
		}
		object, err := p.Finish(store)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = ReadPack(bytes.NewReader(object), int64(len(object)), store, nil, func(c pack.Chunk) error {
			if c != told[n] {
				return fmt.Errorf("chunk %d is %v, was %v", n, c, told[n])
			}
			n++
			slot := object[c.Loc.Offset():][:c.Loc.Slot()]
			if !bytes.Equal(slot, want[c.ID]) || crc32c.Checksum(slot) != c.Loc.CRC {
				return fmt.Errorf("chunk %d has other bytes", n)
			}
			return nil
		})
		if err != nil || n != len(told) {
			t.Fatalf("%d of %d chunks, %v", n, len(told), err)
		}
	}
}

// TestPackObjectIsBounded fills one object: what does not fit goes elsewhere, and one chunk always fits.
func TestPackObjectIsBounded(t *testing.T) {
	var p Packer
	big := pack.Loc{Stored: 16 << 20, Raw: 16 << 20, Codec: chunk.Raw}
	slot := make([]byte, big.Slot())
	for i := range 4 {
		if _, full := p.Add(chunk.ID{byte(i)}, big, slot); full {
			t.Fatalf("full after %d bytes", p.Len())
		}
	}
	if _, full := p.Add(chunk.ID{9}, big, slot); !full || p.Len() != TargetSize {
		t.Errorf("not full with %d bytes", p.Len())
	}
	p.Reset()
	small := pack.Loc{Stored: 1, Raw: 1, Codec: chunk.Raw}
	for full := false; !full; { // the longest list there is
		_, full = p.Add(chunk.ID{9}, small, slot[:chunk.PageSize])
	}
	object, err := p.Finish(store)
	if err != nil {
		t.Fatal(err)
	}
	err = ReadPack(bytes.NewReader(object), int64(len(object)), store, nil, func(pack.Chunk) error { return nil })
	if err != nil {
		t.Error(err)
	}
}

// TestDamagedPackObject flips, cuts and renames: a list is given as it was, or not at all.
func TestDamagedPackObject(t *testing.T) {
	var p Packer
	for i := range 20 {
		id, loc, slot := slotOf(uint64(i), 3000)
		p.Add(id, loc, slot)
	}
	object, err := p.Finish(store)
	if err != nil {
		t.Fatal(err)
	}
	read := func(b []byte, store [16]byte) error {
		return ReadPack(bytes.NewReader(b), int64(len(b)), store, nil, func(pack.Chunk) error { return nil })
	}
	for i := p.Len(); i < len(object); i++ {
		b := bytes.Clone(object)
		b[i] ^= 0x10
		if err := read(b, store); err == nil {
			t.Errorf("byte %d of %d was changed and nobody says so", i, len(object))
		}
		if err := read(object[:i], store); !errors.Is(err, pack.ErrCorrupt) {
			t.Errorf("cut to %d of %d bytes: %v", i, len(object), err)
		}
	}
	if err := read(object, [16]byte{1}); !errors.Is(err, pack.ErrCorrupt) {
		t.Errorf("of another store: %v", err)
	}
}

// someList gives a list with n chunks in several packs.
func someList(n int) *List {
	l := &List{}
	for range 5 {
		l.Packs = append(l.Packs, PackRef{name(len(l.Packs)), TargetSize})
	}
	for i := range n {
		id, loc, _ := slotOf(uint64(i), 100+i%5000)
		loc.Pack, loc.Page = uint32(i%5+1), uint32(i/5*2)
		l.Chunks = append(l.Chunks, pack.Chunk{ID: id, Loc: loc})
	}
	for i := range 50 {
		l.Records = append(l.Records, pack.KV{Key: fmt.Sprintf("pack/%d", i), Value: make([]byte, i*1000)})
	}
	l.Records = append(l.Records, pack.KV{Key: "end", Value: []byte("of nothing")}, pack.KV{Key: "pack"})
	return l
}

// decoded gives a list as it is told.
func decoded(b []byte) (*List, error) {
	var l List
	err := Decode(Source{Reader: bytes.NewReader(b)}, store, Visitor{
		Pack: func(n uint32, p PackRef) error {
			l.Packs = append(l.Packs, p)
			if int(n) != len(l.Packs) {
				return fmt.Errorf("pack %d is told as %d", len(l.Packs), n)
			}
			return nil
		},
		Chunk: func(c pack.Chunk) error { l.Chunks = append(l.Chunks, c); return nil },
		Record: func(kv pack.KV) error {
			l.Records = append(l.Records, pack.KV{Key: kv.Key, Value: bytes.Clone(kv.Value)})
			return nil
		},
	})
	return &l, err
}

func same(a, b *List) bool {
	return slices.Equal(a.Packs, b.Packs) && slices.Equal(a.Chunks, b.Chunks) &&
		slices.EqualFunc(a.Records, b.Records, func(x, y pack.KV) bool {
			return x.Key == y.Key && bytes.Equal(x.Value, y.Value)
		})
}

func TestList(t *testing.T) {
	for _, n := range []int{0, 1, 20000} {
		l := someList(n)
		b, err := l.Encode(store)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decoded(b)
		if err != nil || !same(l, got) {
			t.Errorf("a list of %d chunks comes back as another one, %v", n, err)
		}
		if err := Decode(Source{Reader: bytes.NewReader(b)}, store, Visitor{}); err != nil {
			t.Errorf("nobody listens: %v", err)
		}
		if err := Decode(Source{Reader: bytes.NewReader(b)}, [16]byte{1}, Visitor{}); !errors.Is(err, pack.ErrCorrupt) {
			t.Errorf("of another store: %v", err)
		}
	}
}

// TestListOfAnotherRoot: a root says how its list begins, and lists all packs that it names.
func TestListOfAnotherRoot(t *testing.T) {
	l := someList(100)
	b, err := l.Encode(store)
	if err != nil {
		t.Fatal(err)
	}
	none, err := (&List{}).Encode(store)
	if err != nil {
		t.Fatal(err)
	}
	listed := func(packs ...PackRef) func(PackRef) bool {
		return func(p PackRef) bool { return slices.Contains(packs, p) }
	}
	longer := slices.Clone(l.Packs)
	longer[4].Size++
	for name, c := range map[string]struct {
		of   Source
		list []byte
		ok   bool
	}{
		"as it is":            {Source{First: l.Records[0].Key, Lists: listed(l.Packs...)}, b, true},
		"a pack more":         {Source{Lists: listed(append(l.Packs[:5:5], PackRef{Name: name(9)})...)}, b, true},
		"a pack less":         {Source{Lists: listed(l.Packs[:4]...)}, b, false},
		"a longer pack":       {Source{Lists: listed(longer...)}, b, false},
		"another first one":   {Source{First: l.Records[1].Key}, b, false},
		"no record, but one":  {Source{First: "x"}, none, false},
		"no record, and none": {Source{Lists: listed()}, none, true},
	} {
		c.of.Reader = bytes.NewReader(c.list)
		if err := Decode(c.of, store, Visitor{}); c.ok != (err == nil) || err != nil && !errors.Is(err, ErrReplaced) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestImpossibleListIsNotEncoded refuses what could not be read again.
func TestImpossibleListIsNotEncoded(t *testing.T) {
	at := func(n, page uint32) pack.Chunk {
		return pack.Chunk{Loc: pack.Loc{Pack: n, Page: page, Stored: 1, Raw: 1}}
	}
	one := []PackRef{{name(1), 8192}}
	for name, l := range map[string]*List{
		"no pack":         {Chunks: []pack.Chunk{at(1, 0)}},
		"pack 0":          {Packs: one, Chunks: []pack.Chunk{at(0, 0)}},
		"behind its end":  {Packs: one, Chunks: []pack.Chunk{at(1, 2)}},
		"a long key":      {Records: []pack.KV{{Key: string(make([]byte, pack.MaxKey))}}},
		"a negative pack": {Packs: []PackRef{{name(1), -1}}},
	} {
		if b, err := l.Encode(store); err == nil {
			t.Errorf("%s: encoded in %d bytes", name, len(b))
		}
	}
}

// TestDamagedList changes and cuts lists: what is told as whole is what was encoded.
func TestDamagedList(t *testing.T) {
	l := someList(300)
	b, err := l.Encode(store)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		bad := bytes.Clone(b)
		bad[rnd.IntN(len(bad))] ^= 1 << rnd.IntN(8)
		if rnd.IntN(3) == 0 {
			bad = bad[:rnd.IntN(len(bad))]
		}
		got, err := decoded(bad)
		switch {
		case err == nil && !same(l, got):
			t.Fatal("a damaged list is told as another one")
		case err != nil && !errors.Is(err, pack.ErrCorrupt) && !errors.Is(err, pack.ErrVersion):
			t.Fatalf("damage is not told as such: %v", err)
		}
	}
}

// TestUnreadableListIsNoDamage: when a list cannot be read to its end, the error is the reader's.
func TestUnreadableListIsNoDamage(t *testing.T) {
	b, err := someList(20000).Encode(store)
	if err != nil {
		t.Fatal(err)
	}
	away := errors.New("the bucket is away")
	for _, n := range []int{0, 10, len(b) / 2, len(b)} {
		err := Decode(Source{Reader: io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(away))}, store, Visitor{})
		if !errors.Is(err, away) || errors.Is(err, pack.ErrCorrupt) {
			t.Errorf("away after %d of %d bytes: %v", n, len(b), err)
		}
	}
}

// TestForgedListIsRefusedSoon decompresses to far more than what a list of its length can hold.
func TestForgedListIsRefusedSoon(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var frames []byte
	for range 120 {
		kv := pack.KV{Key: "m/x", Value: make([]byte, 1<<20)}
		b, err := pack.EncodeFrames(pack.Header{Version: Version, Store: store}, nil, []pack.KV{kv})
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, b...)
	}
	told := 0
	err = Decode(Source{Reader: bytes.NewReader(enc.EncodeAll(frames, nil))}, store, Visitor{
		Record: func(pack.KV) error { told++; return nil },
	})
	if !errors.Is(err, pack.ErrCorrupt) || told > 100 {
		t.Errorf("%d records of 1 MiB were told, then %v", told, err)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := someList(10).Encode(store)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		var packs []PackRef
		_ = Decode(Source{Reader: bytes.NewReader(b)}, store, Visitor{
			Pack:  func(_ uint32, p PackRef) error { packs = append(packs, p); return nil },
			Chunk: func(c pack.Chunk) error { return inside(c.Loc, packs) },
		})
	})
}

func FuzzReadPack(f *testing.F) {
	var p Packer
	for i := range 3 {
		id, loc, slot := slotOf(uint64(i), 3000)
		p.Add(id, loc, slot)
	}
	b, err := p.Finish(store)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[4096:])
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		_ = ReadPack(bytes.NewReader(b), int64(len(b)), store, nil, func(c pack.Chunk) error {
			if c.Loc.Offset()+c.Loc.Slot() > int64(len(b)) {
				t.Error("a slot beyond the object")
			}
			return nil
		})
	})
}
