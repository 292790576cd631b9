package feed

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// farFile is a file in chunks of two pages; every third one is here, the others lie in a bucket, in turned order.
type farFile struct{ pages int64 }

func (f farFile) Size() int64                               { return f.pages * prefetch.PageSize }
func (f farFile) ReadAt(p []byte, _ int64) (int, error)     { return len(p), nil }
func (f farFile) Data(off, end int64) (int64, int64, error) { return off, end, nil }
func (f farFile) isAway(page int64) bool                    { return page/2%3 != 0 }
func (f farFile) Away(yield func(off, n int64, c index.Chunk) bool) error {
	for page := int64(0); page < f.pages; page += 2 {
		c := index.Chunk{ID: chunk.ID{byte(page)}, Loc: pack.Loc{Pack: pack.FirstDistant, Page: uint32(1000 - page)}}
		if f.isAway(page) && !yield(page*prefetch.PageSize, 2*prefetch.PageSize, c) {
			return nil
		}
	}
	return nil
}

// farAway brings what it is told to.
type farAway struct {
	lists chan []index.Chunk
	bring chan []int // closed: all the rest
}

func (f *farAway) Bring(ctx context.Context, list []index.Chunk, came func([]int)) {
	f.lists <- list
	left := map[int]bool{}
	for i := range list {
		left[i] = true
	}
	for {
		select {
		case of, ok := <-f.bring:
			if ok {
				for _, n := range of {
					delete(left, n)
				}
				came(of)
				continue
			}
		case <-ctx.Done():
		}
		for n := range left {
			came([]int{n})
		}
		return
	}
}

// swept is a supplier that notes what was swept.
type swept struct {
	mu     sync.Mutex
	ranges []prefetch.Range
	drains int
}

func (s *swept) Demand(prefetch.Range, bool) {}
func (s *swept) Refetch([]prefetch.Range)    {}
func (s *swept) Drain(context.Context) error { s.drains++; return nil }
func (s *swept) Sweep(ranges []prefetch.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranges = append(s.ranges, ranges...)
}

// pages gives how often each page was swept.
func (s *swept) pages(n int64) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]int, n)
	for _, r := range s.ranges {
		for page := r.Off / prefetch.PageSize; page < r.End()/prefetch.PageSize; page++ {
			out[page]++
		}
	}
	return out
}

// TestSweepFollowsWhatComes sweeps a file of which a part lies in a bucket: what is here is passed on at once, the rest
// when it has come, all of it once, and whoever drains waits for that. What is not brought is passed on in the end.
func TestSweepFollowsWhatComes(t *testing.T) {
	for _, early := range []bool{true, false} {
		const pages = 60
		f, to := farFile{pages}, &swept{}
		far := &farAway{lists: make(chan []index.Chunk, 1), bring: make(chan []int)}
		a := newAhead(far, nil)
		var list []index.Chunk
		sweep := func() {
			a.Sweep([]prefetch.Range{{Off: prefetch.PageSize, Len: 28 * prefetch.PageSize}})
			a.Sweep([]prefetch.Range{{Off: 29 * prefetch.PageSize, Len: 31 * prefetch.PageSize}})
		}
		if early {
			a.Supplier = to
			sweep()
			a.start([]prefetch.File{f}, to, nil)
			list = <-far.lists
		} else {
			a.start([]prefetch.File{f}, to, nil)
			list = <-far.lists
			sweep()
		}
		if !slices.IsSortedFunc(list, func(x, y index.Chunk) int { return int(x.Loc.Page) - int(y.Loc.Page) }) {
			t.Error("not in the order in which it lies in the bucket")
		}
		want := make([]int, pages)
		for page := int64(1); page < pages; page++ {
			if !f.isAway(page) {
				want[page] = 1
			}
		}
		if got := to.pages(pages); !slices.Equal(got, want) {
			t.Errorf("swept of what is here:\n%v, not\n%v", got, want)
		}
		drained := make(chan error, 1)
		go func() { drained <- a.Drain(t.Context()) }()
		for i := range 3 {
			far.bring <- []int{i}
			page := int64(list[i].ID[0])
			want[page], want[page+1] = 1, 1
		}
		far.bring <- nil // what came before has been passed on
		if got := to.pages(pages); !slices.Equal(got, want) {
			t.Errorf("swept when three chunks have come:\n%v, not\n%v", got, want)
		}
		select {
		case <-drained:
			t.Error("drained before all has come")
		case <-time.After(10 * time.Millisecond):
		}
		if early {
			close(far.bring)
		} else {
			a.close()
		}
		if err := <-drained; err != nil || to.drains != 1 {
			t.Errorf("drained %d times, %v", to.drains, err)
		}
		for page := range want {
			want[page] = min(page, 1)
		}
		if got := to.pages(pages); !slices.Equal(got, want) {
			t.Errorf("swept in the end:\n%v, not\n%v", got, want)
		}
		a.close()
	}
}
