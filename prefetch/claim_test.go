package prefetch

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// pieced is a source that is stored in pieces of random size.
type pieced struct {
	*source
	cuts []int64 // where pieces begin, and the end
}

func newPieced(size int64, seed uint64) *pieced {
	p := &pieced{source: newSource(size, seed)}
	rnd := rand.New(rand.NewPCG(seed, 0))
	for off := int64(0); off < size; off += PageSize * (1 + rnd.Int64N(100)) {
		p.cuts = append(p.cuts, off)
	}
	p.cuts = append(p.cuts, size)
	return p
}

func (p *pieced) Spans(yield func(start, end int64) bool) error {
	for i := 1; i < len(p.cuts); i++ {
		if i%7 != 3 && !yield(p.cuts[i-1], p.cuts[i]) {
			break
		}
	}
	return nil
}

// Whoever asks, what is stored together is read at once, and only once.
func TestStoredTogetherIsReadOnce(t *testing.T) {
	for _, wait := range []bool{false, true} {
		storedTogetherIsReadOnce(t, wait)
	}
}

// storedTogetherIsReadOnce asks for one half, for single pages and for the other half. It may wait for the first half.
func storedTogetherIsReadOnce(t *testing.T, wait bool) {
	src := newPieced(40*mib+3*PageSize, 9)
	src.zero = func(page int64) bool { return page%1500 < 40 || page%11 == 0 }
	for p := int64(0); p*PageSize < src.Size(); p++ {
		if src.zero(p) {
			clear(src.data[p*PageSize : min((p+1)*PageSize, src.Size())])
		}
	}
	out := newSink(src.Size())
	rnd := rand.New(rand.NewPCG(10, 0))
	var hotSet []Range
	for range 30 {
		hotSet = append(hotSet, Range{0, rnd.Int64N(src.Size()/PageSize) * PageSize, PageSize})
	}
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Hot: hotSet, RunBytes: mib, Memory: 8 * mib, Workers: 4})
	half := src.cuts[len(src.cuts)/2] // a sweep that ends within a piece leaves the rest of it to the next one
	q.Sweep([]Range{{0, 0, half}})
	for range 200 {
		q.Demand(Range{0, rnd.Int64N(src.Size()/PageSize) * PageSize, PageSize}, false)
	}
	if wait {
		drain(t, q)
	}
	q.Sweep([]Range{{0, half, src.Size() - half}})
	drain(t, q)
	if !bytes.Equal(out.got, src.data) {
		t.Error("contents differ")
	}
	if i := slices.IndexFunc(out.times, func(n int) bool { return n != 1 }); i >= 0 {
		t.Errorf("page %d was delivered %d times", i, out.times[i])
	}
	reads := src.taken()
	slices.SortFunc(reads, func(a, b Range) int { return int(a.Off - b.Off) })
	for i, r := range reads {
		if i > 0 && r.Off < reads[i-1].End() {
			t.Errorf("%v was read after %v", r, reads[i-1])
		}
		// Zeros at its ends need no reading.
		if at, whole := slices.BinarySearch(src.cuts, r.Off); !whole && !src.zero(r.Off/PageSize-1) {
			t.Errorf("%v begins within %d to %d", r, src.cuts[at-1], src.cuts[at])
		}
	}
}

// A piece that cannot be read as a whole fails page by page.
func TestOnlyBadPagesOfAPieceFail(t *testing.T) {
	src := newPieced(4*mib, 11)
	src.bad = func(page int64) bool { return page%300 == 17 }
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, RunBytes: mib, Memory: 8 * mib})
	q.Sweep([]Range{{0, 0, src.Size()}})
	drain(t, q)
	for p, n := range out.times {
		if want := 1; src.bad(int64(p)) == (n == want) {
			t.Errorf("page %d was delivered %d times", p, n)
		}
	}
	if len(out.failed) != 4 {
		t.Errorf("failed: %v", out.failed)
	}
}

// A piece larger than a run, and one of which only a part is wanted.
func TestLargePieces(t *testing.T) {
	src := &pieced{newSource(8*mib, 12), []int64{0, 5 * mib, 8 * mib}}
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, RunBytes: mib, Memory: 4 * mib, Workers: 2})
	q.Demand(Range{0, 3 * mib, PageSize}, false)
	q.Sweep([]Range{{0, mib / 2, 6 * mib}})
	drain(t, q)
	from, to := mib/2, 6*mib+mib/2
	if !bytes.Equal(out.got[from:to], src.data[from:to]) {
		t.Error("contents differ")
	}
	for p, n := range out.times {
		want := 0
		if p >= from/PageSize && p < to/PageSize {
			want = 1
		}
		if n != want {
			t.Fatalf("page %d was delivered %d times", p, n)
		}
	}
	for _, r := range src.taken() {
		if r.Len > mib {
			t.Errorf("read %v", r)
		}
	}
}
