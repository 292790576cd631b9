package uffd

import (
	"testing"
	"time"
	"unsafe"
)

// TestSlotsRetired holds slots to it that none is written to again once nobody tells
// whether the guardian still copies from it, and that nobody waits for one.
func TestSlotsRetired(t *testing.T) {
	s, f, err := makeSlots(2*pageSize, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer s.close()
	inside := func(b []byte) bool {
		off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))
		return off < uintptr(len(s.mem))
	}
	a, b := s.Get(), s.Get()
	if !inside(a) || !inside(b) {
		t.Fatal("slots outside of the memory")
	}
	waited := make(chan []byte)
	go func() { waited <- s.Get() }()
	time.Sleep(10 * time.Millisecond)
	s.retire()
	s.Put(a)
	for _, c := range [][]byte{<-waited, s.Get()} {
		if inside(c) || int64(len(c)) != 2*pageSize {
			t.Errorf("%d bytes, inside %v", len(c), inside(c))
		}
	}
}
