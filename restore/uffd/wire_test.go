package uffd

import (
	"errors"
	"io"
	"os"
	"reflect"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == keptRole {
		playKept()
		return
	}
	if len(os.Args) == 4 && os.Args[1] == criuRole {
		playCRIU(os.Args[2], os.Args[3])
	}
	goleak.VerifyTestMain(m)
}

func packets() []packet {
	return []packet{
		{kind: kindStop},
		{kind: kindTask},
		{kind: kindDemand, flag: true, r: prefetch.Range{File: 3, Off: 1 << 50, Len: pageSize}},
		{kind: kindTake, id: 1 << 60,
			ranges: []prefetch.Range{{File: 0, Off: 0, Len: 2 << 20}, {File: 1, Off: 1 << 40, Len: 4096}},
			pages:  []uint32{7, zeroPage}},
		{kind: kindSweep, ranges: []prefetch.Range{{File: 1, Off: pageSize, Len: pageSize},
			{File: -1, Off: -1, Len: -1}}},
		{kind: kindFail, id: 9, tail: []byte("no such chunk")},
	}
}

func TestWire(t *testing.T) {
	a, b := wirePair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, p := range packets() {
		if i == 2 {
			p.fds = []int{int(w.Fd()), int(w.Fd())}
		}
		if err := a.send(&p); err != nil {
			t.Fatal(err)
		}
		got, err := b.receive()
		if err != nil {
			t.Fatal(err)
		}
		if len(got.fds) != len(p.fds) {
			t.Errorf("%d descriptors, sent %d", len(got.fds), len(p.fds))
		}
		for _, fd := range got.fds {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				t.Error(err)
			}
		}
		closeAll(got.fds)
		got.fds, p.fds = nil, nil
		if len(got.tail) == 0 {
			got.tail = nil
		}
		if !reflect.DeepEqual(got, p) {
			t.Errorf("got %+v, sent %+v", got, p)
		}
	}
	w.Close()
	if got, _ := io.ReadAll(r); string(got) != "xx" {
		t.Errorf("through the descriptors came %q", got)
	}
	many := make([]prefetch.Range, 2*maxRanges+1)
	go a.sendRanges(kindRefetch, many)
	for n := 0; n < len(many); {
		p, err := b.receive()
		if err != nil || p.kind != kindRefetch {
			t.Fatal(p.kind, err)
		}
		n += len(p.ranges)
	}
	a.close()
	if _, err := b.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range packets() {
		f.Add(p.encode(nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		p, err := decode(b)
		if err != nil {
			return
		}
		q, err := decode(p.encode(nil))
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%+v came back as %+v, %v", p, q, err)
		}
	})
}

// What is queued for a provider that is gone is not sent to the next one.
func TestOutbox(t *testing.T) {
	o := newOutbox()
	defer o.close()
	if o.put(packet{kind: kindDemand, id: 1}) {
		t.Error("sent to nobody")
	}
	for round := range 3 {
		fa, fb, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		a, _ := newWire(fa)
		b, _ := newWire(fb)
		o.to(a)
		for i := range 10 {
			o.put(packet{kind: kindDemand, id: uint64(round*100 + i)})
		}
		o.flush()
		for i := range 10 {
			p, err := b.receive()
			if err != nil || p.id != uint64(round*100+i) {
				t.Fatalf("round %d: got %d, %v; want %d", round, p.id, err, round*100+i)
			}
		}
		b.close()
		a.close()
		for i := range 10 {
			o.put(packet{kind: kindDemand, id: uint64(900 + i)})
		}
	}
}

func TestSlots(t *testing.T) {
	const size = 4 * pageSize
	s, f, err := makeSlots(size, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer s.close()
	other, err := mapSlots(int(f.Fd()), size)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	seen := make(map[uint32]bool)
	for i := range 3 {
		b := other.Get()
		// What is delivered may begin anywhere in the buffer.
		n := other.page(b[pageSize:])
		seen[n] = true
		b[pageSize] = byte('a' + i)
		if got := s.at(n, size-pageSize); got == nil || got[0] != byte('a'+i) || len(b) != size {
			t.Errorf("page %d is not shared, or of a buffer of %d bytes", n, len(b))
		}
	}
	if s.at(3*size/pageSize-1, 2*pageSize) != nil || s.at(0, size+pageSize) != nil || s.at(1<<31, pageSize) != nil {
		t.Error("memory outside the slots, or more than one")
	}
	if len(seen) != 3 {
		t.Errorf("three buffers at pages %v", seen)
	}
	if _, err := mapSlots(int(f.Fd()), 4*size); err == nil {
		t.Error("mapped less than one slot")
	}
}

// What was sent by one that was killed arrives, though it had not read all that
// was sent to it.
func TestLastWordsOfTheKilled(t *testing.T) {
	ours, theirs := wirePair(t)
	for id := range uint64(3) {
		if err := theirs.send(&packet{kind: kindLeft, id: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ours.send(&packet{kind: kindStop}); err != nil {
		t.Fatal(err)
	}
	theirs.close()
	for id := range uint64(3) {
		if p, err := ours.receive(); err != nil || p.id != id {
			t.Fatalf("packet %d: %+v, %v", id, p, err)
		}
	}
	if _, err := ours.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// wirePair gives both ends of a connection.
func wirePair(t *testing.T) (a, b *wire) {
	t.Helper()
	fa, fb, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = newWire(fa); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	if b, err = newWire(fb); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return a, b
}
