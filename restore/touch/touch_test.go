package touch

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Pages are read where they are mapped, and only there.
func TestTouch(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 1000*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL {
		t.Fatal(err)
	}
	start := addressOf(mem)
	hole := mem[400*pageSize : 500*pageSize]
	if err := unix.Mprotect(hole, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 1000; i += 7 { // some are there before
		if i < 400 || i >= 500 {
			mem[i*pageSize] = 1
		}
	}
	spans := []Span{{start, start + uint64(len(mem))}, {1 << 62, 1<<62 + pageSize}}
	if err := Spans(os.Getpid(), spans, time.Minute); err != nil {
		t.Fatal(err)
	}
	resident := make([]byte, 1000)
	if err := mincore(mem, resident); err != nil {
		t.Fatal(err)
	}
	for i, r := range resident {
		if want := i < 400 || i >= 500; (r&1 == 1) != want {
			t.Fatalf("page %d is resident: %v", i, !want)
		}
	}
	if err := Spans(os.Getpid(), nil, time.Minute); err != nil {
		t.Error(err)
	}
	if err := All(os.Getpid(), time.Minute); err != nil {
		t.Error(err)
	}
}

// TestTouchOddSpan: a span may begin and end anywhere, be longer than what is looked at at a time, and lie in a mapping
// that goes on.
func TestTouchOddSpan(t *testing.T) {
	const size = 1 << 30
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	mem[size/2], mem[size-1] = 7, 9
	start := addressOf(mem)
	odd := Span{start + 3*pageSize, start + 64<<20 + 5*pageSize + 1}
	if err := Spans(os.Getpid(), []Span{odd}, time.Minute); err != nil {
		t.Fatal(err)
	}
	resident := make([]byte, size/pageSize)
	if err := mincore(mem, resident); err != nil {
		t.Fatal(err)
	}
	for i := odd.Start; i < odd.End; i += pageSize {
		if resident[(i-start)/pageSize]&1 == 0 {
			t.Fatalf("the page at %#x of the span is not there", i-start)
		}
	}
	if mem[size/2] != 7 || mem[size-1] != 9 {
		t.Error("the content has changed")
	}
}
