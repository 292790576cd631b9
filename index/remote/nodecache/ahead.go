package nodecache

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// AheadRequest bounds a request for what nobody waits for, in bytes.
	AheadRequest = 4 << 20
	// aheadWorkers bounds how many of them are under way.
	aheadWorkers = 24
	// gapShare of what is fetched ahead may be what nobody wants: beyond that a gap ends a request.
	gapShare = 64
)

// Ahead is the way to a bucket for what nobody waits for. A reader who waits uses Source, beside it.
type Ahead interface {
	// Begin waits until one more range may be asked for. end tells how many bytes came.
	Begin(ctx context.Context) (end func(bytes int64), err error)
	// ReadAhead is ReadRange of Source.
	ReadAhead(ctx context.Context, name object.Name, p []byte, off int64) error
}

// Wanted is a slot of an object.
type Wanted struct {
	Object *Object
	Chunk  pack.Chunk
}

// Bring fetches slots before anybody asks for them, in their order: neighbours with one request, as many requests at
// once as Options.Ahead allows. It calls came, from many goroutines, with the numbers of slots that can be read here,
// or which their readers have to fetch themselves, since they could not be fetched or kept. When it returns came has
// been called with each of them.
func (c *Cache) Bring(ctx context.Context, list []Wanted, came func(numbers []int)) {
	b := bringing{c: c, list: list, here: make([]bool, len(list))}
	here := b.look()
	absent := len(list) - len(here)
	if len(here) > 0 {
		came(here)
	}
	var workers sync.WaitGroup
	for range min(aheadWorkers, absent) { // none asks for the bucket where nothing is absent
		workers.Go(func() {
			for b.next(ctx, came) {
			}
		})
	}
	workers.Wait()
	if rest := b.rest(); len(rest) > 0 {
		came(rest)
	}
}

// bringing is one Bring.
type bringing struct {
	c    *Cache
	list []Wanted
	here []bool // in the file already, as far as can be told without reading it

	mu         sync.Mutex
	at         int   // what of list has been taken
	want, gaps int64 // bytes of slots taken, and between them
}

// look finds out what is here. The list may be in any order: each file is opened once, and asked in its own order.
func (b *bringing) look() (here []int) {
	of := map[*Object][]int{}
	for i, w := range b.list {
		of[w.Object] = append(of[w.Object], i)
	}
	for o, numbers := range of {
		if b.c.o.Limit <= 0 || !b.c.plain(o.Name) {
			continue
		}
		f, err := b.c.o.Storage.Open(b.c.path(o.Name), storage.Read)
		if err != nil {
			continue
		}
		slices.SortFunc(numbers, func(x, y int) int {
			return cmp.Compare(b.list[x].Chunk.Loc.Page, b.list[y].Chunk.Loc.Page)
		})
		for from := 0; from < len(numbers); {
			to := from + 1
			for to < len(numbers) && b.end(numbers[to-1]) <= b.start(numbers[to]) {
				to++
			}
			b.lookIn(f, numbers[from:to], unknown)
			from = to
		}
		f.Close()
	}
	for i, is := range b.here {
		if is {
			here = append(here, i)
		}
	}
	return here
}

func (b *bringing) start(n int) int64 { return b.list[n].Chunk.Loc.Offset() }

func (b *bringing) end(n int) int64 { return b.start(n) + b.list[n].Chunk.Loc.Slot() }

// unknown is how much of a range is in a file that was not asked yet.
const unknown = -1

// lookIn finds out which slots of one object are in its file, and gives how many bytes from the first to the last are.
// They lie behind one another. It asks for all of them at once, unless got tells, and for halves of them where some are
// absent.
func (b *bringing) lookIn(f storage.File, numbers []int, got int64) int64 {
	start, end := b.start(numbers[0]), b.end(numbers[len(numbers)-1])
	if got == unknown {
		var err error
		if got, err = f.Allocated(start, end-start); err != nil {
			return unknown
		}
	}
	switch {
	case got <= 0:
	case got >= end-start:
		for _, n := range numbers {
			b.here[n] = true
		}
	case len(numbers) > 1:
		middle := len(numbers) / 2
		rest := b.lookIn(f, numbers[:middle], unknown)
		if rest != unknown && b.end(numbers[middle-1]) == b.start(numbers[middle]) {
			rest = max(0, got-rest) // what is not in the one half is in the other
		} else {
			rest = unknown
		}
		b.lookIn(f, numbers[middle:], rest)
	}
	return got
}

// take gives the numbers of the slots of the next request.
func (b *bringing) take() (of []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var first, end int64
	for ; b.at < len(b.list); b.at++ {
		if b.here[b.at] {
			continue
		}
		w := b.list[b.at]
		l := w.Chunk.Loc
		if len(of) > 0 {
			gap := l.Offset() - end
			if w.Object != b.list[of[0]].Object || gap < 0 || gap > gapBytes ||
				gap > 0 && (b.gaps+gap)*gapShare > b.want || l.Offset()+l.Slot()-first > AheadRequest {
				return of
			}
			b.gaps += gap
		} else {
			first = l.Offset()
		}
		end = l.Offset() + l.Slot()
		b.want += l.Slot()
		of = append(of, b.at)
	}
	return of
}

// rest gives what was not taken, as the context ended or nothing can be kept.
func (b *bringing) rest() (of []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ; b.at < len(b.list); b.at++ {
		if !b.here[b.at] {
			of = append(of, b.at)
		}
	}
	return of
}

// next brings the slots of one request, and says whether to go on.
func (b *bringing) next(ctx context.Context, came func([]int)) bool {
	c := b.c
	if !c.keeps() || ctx.Err() != nil {
		return false
	}
	end := func(int64) {}
	if c.o.Ahead != nil {
		var err error
		if end, err = c.o.Ahead.Begin(ctx); err != nil {
			return false
		}
		if !c.keeps() { // that nothing can be kept was found while this one waited
			end(0)
			return false
		}
	}
	of := b.take()
	if len(of) == 0 {
		end(0)
		return false
	}
	o := *b.list[of[0]].Object
	list := make([]pack.Chunk, len(of))
	for i, n := range of {
		list[i] = b.list[n].Chunk
	}
	all := make([]int, len(of))
	for i := range all {
		all[i] = i
	}
	if o.check(list) != nil { // reading them reports the error
		end(0)
		came(of)
		return true
	}
	mine, others, _ := c.claim(o.Name, list, all)
	var bytes int64
	for len(mine) > 0 {
		n := b.joined(list, mine)
		first, last := list[mine[0]].Loc, list[mine[n-1]].Loc
		bytes += last.Offset() + last.Slot() - first.Offset()
		c.fetch(ctx, o, list, nil, make([]error, len(list)), mine[:n], true)
		mine = mine[n:]
	}
	end(bytes)
	for _, f := range others {
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	}
	came(of)
	return true
}

// joined gives how many of the slots that are to be fetched go into one request: what others have fetched meanwhile
// lies between them.
func (b *bringing) joined(list []pack.Chunk, mine []int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := 1; n < len(mine); n++ {
		last := list[mine[n-1]].Loc
		gap := list[mine[n]].Loc.Offset() - last.Offset() - last.Slot()
		if mine[n] > mine[n-1]+1 && (b.gaps+gap)*gapShare > b.want {
			return n
		}
		if mine[n] > mine[n-1]+1 {
			b.gaps += gap
		}
	}
	return len(mine)
}

// keeps says whether what is fetched is kept.
func (c *Cache) keeps() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.o.Limit > 0 && !c.full
}
