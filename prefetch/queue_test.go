package prefetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a File in memory that can be slow, stopped, and damaged.
type source struct {
	data []byte
	zero func(page int64) bool
	bad  func(page int64) bool
	gate chan struct{} // when not nil, each read waits for a token

	mu     sync.Mutex
	reads  []Range
	inside atomic.Int64
	most   atomic.Int64
}

func newSource(size int64, seed uint64) *source {
	s := &source{data: make([]byte, size)}
	rnd := rand.NewChaCha8([32]byte{byte(seed)})
	rnd.Read(s.data)
	return s
}

func (s *source) Size() int64 { return int64(len(s.data)) }

func (s *source) Data(off, end int64) (start, stop int64, err error) {
	if s.zero == nil {
		return off, end, nil
	}
	start = off
	for start < end && s.zero(start/PageSize) {
		start += PageSize
	}
	stop = start
	for stop < end && !s.zero(stop/PageSize) {
		stop += PageSize
	}
	return min(start, end), min(stop, end), nil
}

var errBad = errors.New("bad page")

func (s *source) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	s.reads = append(s.reads, Range{0, off, int64(len(p))})
	s.mu.Unlock()
	n := s.inside.Add(1)
	defer s.inside.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	if s.gate != nil {
		<-s.gate
	}
	for page := off / PageSize; s.bad != nil && page < (off+int64(len(p))+PageSize-1)/PageSize; page++ {
		if s.bad(page) {
			return 0, errBad
		}
	}
	return copy(p, s.data[off:]), nil
}

func (s *source) taken() []Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

// sink keeps what it is given.
type sink struct {
	mu     sync.Mutex
	got    []byte
	times  []int // by page
	order  []Range
	failed []Range
	had    []Range
}

func newSink(size int64) *sink {
	return &sink{got: make([]byte, size), times: make([]int, (size+PageSize-1)/PageSize)}
}

func (s *sink) add(r Range) {
	s.order = append(s.order, r)
	for p := r.Off / PageSize; p < (r.End()+PageSize-1)/PageSize; p++ {
		s.times[p]++
	}
}

func (s *sink) Take(parts []Part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		s.add(p.Range)
		if p.Data == nil {
			clear(s.got[p.Off:p.End()])
			continue
		}
		copy(s.got[p.Off:p.End()], p.Data)
	}
}

func (s *sink) Fail(r Range, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errBad) {
		s.failed = append(s.failed, r)
	}
}

func (s *sink) AlreadyDelivered(r Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.had = append(s.had, r)
}

func (s *sink) filled() []Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

func newQueue(t *testing.T, o Options) *Queue {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	q, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

func drain(t *testing.T, q *Queue) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := q.Drain(ctx); err != nil {
		t.Fatalf("not drained: %v, %+v", err, q.Stats())
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

const mib = 1 << 20

func TestSweepBringsEverythingOnceInLargeRuns(t *testing.T) {
	src := newSource(20*mib+3*PageSize, 1)
	src.zero = func(page int64) bool { return page%1024 < 100 }
	for p := int64(0); p < int64(len(src.data))/PageSize; p++ {
		if src.zero(p) {
			clear(src.data[p*PageSize : (p+1)*PageSize])
		}
	}
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, RunBytes: 4 * mib, Memory: 16 * mib, Workers: 3})
	q.Sweep([]Range{{0, 0, 7 * mib}, {0, 5 * mib, src.Size() - 5*mib}})
	drain(t, q)
	if !bytes.Equal(out.got, src.data) {
		t.Error("contents differ")
	}
	if i := slices.IndexFunc(out.times, func(n int) bool { return n != 1 }); i >= 0 {
		t.Errorf("page %d was delivered %d times", i, out.times[i])
	}
	// 4 MiB runs, cut by zero runs every 4 MiB.
	if n := len(src.taken()); n > 12 {
		t.Errorf("%d reads: %v", n, src.taken())
	}
	st := q.Stats()
	if st.ZeroBytes != (5*100+3)*PageSize {
		t.Errorf("%+v", st)
	}
	if st.Refetched != 0 || st.SweepBytes != src.Size() {
		t.Errorf("%+v", st)
	}
}

func TestDemandBeforeHotBeforeSweep(t *testing.T) {
	src := newSource(32*mib, 2)
	src.gate = make(chan struct{})
	out := newSink(src.Size())
	hotSet := []Range{{0, 20 * mib, 2 * UnitBytes}, {0, 10 * mib, UnitBytes}, {0, 20*mib + 2*UnitBytes, UnitBytes}}
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Workers: 1, RunBytes: 2 * mib, Memory: 8 * mib,
		DemandBytes: UnitBytes, Hot: hotSet})
	// Both workers are stopped in a read.
	q.Demand(Range{0, 31 * mib, PageSize}, false)
	q.Demand(Range{0, 30 * mib, PageSize}, false)
	eventually(t, "two reads", func() bool { return len(src.taken()) == 2 })
	q.Sweep([]Range{{0, 0, src.Size()}})
	for _, at := range []int64{5 * mib, 20*mib + UnitBytes} {
		q.Demand(Range{0, at, PageSize}, false)
	}
	close(src.gate)
	drain(t, q)

	var starts []int64
	for _, r := range src.taken()[2:] {
		starts = append(starts, r.Off)
	}
	// Demands in order; then the hot set in the order of the file, without
	// what the demand has brought: the runs on both sides of it.
	first := slices.Index(starts, 5*mib)
	second := slices.Index(starts, 20*mib+UnitBytes)
	third := slices.Index(starts, 20*mib)
	fourth := slices.Index(starts, 10*mib)
	sweeps := slices.Index(starts, 0)
	if first < 0 || second < first || fourth < second || third < fourth || sweeps < third {
		t.Errorf("order of reads: %v", starts)
	}
	for _, r := range src.taken() {
		if r.Off == 10*mib && r.Len != UnitBytes {
			t.Errorf("the hot set was fetched as %v", r)
		}
	}
	if !bytes.Equal(out.got, src.data) {
		t.Error("contents differ")
	}
	if st := q.Stats(); st.Refetched != 0 || st.HotBytes == 0 {
		t.Errorf("%+v", st)
	}
}

func TestDemandJoinsWhatIsInFlight(t *testing.T) {
	src := newSource(4*mib, 3)
	src.gate = make(chan struct{})
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Workers: 1, RunBytes: 4 * mib, Memory: 8 * mib})
	q.Sweep([]Range{{0, 0, src.Size()}})
	eventually(t, "a read", func() bool { return len(src.taken()) == 1 })
	q.Demand(Range{0, 3 * mib, 3 * PageSize}, false)
	close(src.gate)
	drain(t, q)
	if n := len(src.taken()); n != 1 {
		t.Errorf("%d reads", n)
	}
	// It may have come when the sink had passed it already.
	eventually(t, "to be told that it was delivered", func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return slices.Equal(out.had, []Range{{0, 3 * mib, 3 * PageSize}})
	})
	if st := q.Stats(); st.Joined != 1 {
		t.Errorf("%+v", st)
	}
	// And what has been delivered is only fetched again when that is wanted.
	q.Demand(Range{0, 3 * mib, PageSize}, false)
	drain(t, q)
	if len(src.taken()) != 1 || len(out.had) != 2 {
		t.Errorf("%d reads, had %v", len(src.taken()), out.had)
	}
	q.Demand(Range{0, 3 * mib, PageSize}, true)
	drain(t, q)
	if n := len(src.taken()); n != 2 {
		t.Errorf("%d reads", n)
	}
	q.Refetch([]Range{{0, 0, mib}})
	drain(t, q)
	if out.times[0] != 2 || out.times[mib/PageSize-1] != 2 || out.times[mib/PageSize] != 1 ||
		out.times[4*mib/PageSize-1] != 1 {
		t.Errorf("%d and %d deliveries", out.times[0], out.times[4*mib/PageSize-1])
	}
}

func TestRateHoldsBackSweepNotDemand(t *testing.T) {
	src := newSource(16*mib, 4)
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Workers: 4, RunBytes: mib, Memory: 8 * mib, Rate: mib})
	start := time.Now()
	q.Sweep([]Range{{0, 0, 4 * mib}})
	time.Sleep(100 * time.Millisecond)
	q.Demand(Range{0, 15 * mib, PageSize}, false)
	eventually(t, "the demand is served", func() bool {
		return slices.ContainsFunc(out.filled(), func(r Range) bool { return r.Off == 15*mib })
	})
	if len(out.filled()) > 4 {
		t.Errorf("served after %d of 5 runs", len(out.filled()))
	}
	drain(t, q)
	// The first run is free, each pays for the one before.
	if d := time.Since(start); d < 2500*time.Millisecond {
		t.Errorf("4 MiB at 1 MiB/s took %v", d)
	}
}

func TestOnlyBadPagesFail(t *testing.T) {
	src := newSource(8*mib, 5)
	bad := []int64{0, 77, 1000, 1001, 2047}
	src.bad = func(page int64) bool { return slices.Contains(bad, page) }
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Workers: 2, RunBytes: 2 * mib, Memory: 8 * mib})
	q.Sweep([]Range{{0, 0, src.Size()}})
	drain(t, q)
	var failed []int64
	for _, r := range out.failed {
		if r.Len != PageSize {
			t.Errorf("failed %v", r)
		}
		failed = append(failed, r.Off/PageSize)
	}
	slices.Sort(failed)
	if !slices.Equal(failed, bad) {
		t.Errorf("failed %v, want %v", failed, bad)
	}
	for p, n := range out.times {
		if want := 1; slices.Contains(bad, int64(p)) {
			if n != 0 {
				t.Errorf("bad page %d was delivered", p)
			}
		} else if n != want || !bytes.Equal(out.got[p*PageSize:(p+1)*PageSize], src.data[p*PageSize:(p+1)*PageSize]) {
			t.Errorf("page %d: %d times, or wrong", p, n)
		}
	}
	if st := q.Stats(); st.FailedBytes != int64(len(bad))*PageSize {
		t.Errorf("%+v", st)
	}
}

// A file that has become shorter is unreadable there, not zero.
func TestShortFileFails(t *testing.T) {
	src := newSource(mib, 6)
	long := &longer{src, 2 * mib}
	out := newSink(2 * mib)
	q := newQueue(t, Options{Files: []File{long}, Sink: out, RunBytes: mib, Memory: 4 * mib})
	q.Sweep([]Range{{0, 0, 2 * mib}})
	drain(t, q)
	if st := q.Stats(); st.FailedBytes != mib || out.times[mib/PageSize] != 0 || out.times[0] != 1 {
		t.Errorf("%+v", st)
	}
}

type longer struct {
	*source
	size int64
}

func (l *longer) Size() int64 { return l.size }
func (l *longer) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(l.data)) {
		return 0, io.EOF
	}
	return l.source.ReadAt(p, off)
}

func TestMemoryBoundsWhatIsInFlight(t *testing.T) {
	src := newSource(24*mib, 7)
	src.gate = make(chan struct{})
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Workers: 16, RunBytes: mib, Memory: 3 * mib,
		window: time.Millisecond})
	q.Sweep([]Range{{0, 0, src.Size()}})
	for range 8 {
		q.Demand(Range{0, 23 * mib, PageSize}, false)
	}
	go func() {
		for range 24 {
			time.Sleep(time.Millisecond)
			src.gate <- struct{}{}
		}
		close(src.gate)
	}()
	drain(t, q)
	if n := src.most.Load(); n > 3 {
		t.Errorf("%d runs of 1 MiB in flight with memory for 3", n)
	}
}

func TestClimberFindsAndKeepsTheBestNumber(t *testing.T) {
	for _, c := range []struct {
		name   string
		served func(workers int) int64
		lo, hi int
	}{
		{"more is always better", func(w int) int64 { return int64(w) * 100 }, 15, 16},
		{"six are enough", func(w int) int64 { return int64(min(w, 6)) * 100 }, 5, 7},
		{"one is enough", func(w int) int64 { return 100 }, 1, 3},
	} {
		var k workerTuner
		active, sum := 2, 0
		for i := range 400 {
			active = max(1, min(16, k.step(active, c.served(active), true)))
			if i >= 200 {
				sum += active
			}
		}
		if mean := float64(sum) / 200; mean < float64(c.lo) || mean > float64(c.hi) {
			t.Errorf("%s: %.1f workers on the average", c.name, mean)
		}
	}
}

func TestCloseWhileBusy(t *testing.T) {
	src := newSource(64*mib, 8)
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Rate: mib})
	q.Sweep([]Range{{0, 0, src.Size()}})
	read := make(chan error, 1)
	go func() {
		_, err := q.Read(context.Background(), 0, 63*mib, make([]byte, 10))
		read <- err
	}()
	if err := <-read; err != nil {
		t.Errorf("a read beside a held sweep: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if _, err := q.Read(context.Background(), 0, 0, make([]byte, 10)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read after close: %v", err)
	}
}

func TestOptionsRefused(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, o := range map[string]Options{
		"no logger":     {},
		"odd run":       {Logger: log, RunBytes: UnitBytes + 1},
		"small memory":  {Logger: log, RunBytes: 4 * mib, Memory: 4 * mib},
		"large demand":  {Logger: log, RunBytes: mib, DemandBytes: 2 * mib},
		"negative rate": {Logger: log, Rate: -1},
		"names":         {Logger: log, Names: []string{"a"}},
		"hot file":      {Logger: log, Hot: []Range{{3, 0, PageSize}}},
	} {
		if q, err := New(o); err == nil {
			q.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}
