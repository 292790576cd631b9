package prefetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func TestReadersJoinEachOtherAndTheSweep(t *testing.T) {
	src := newSource(6*mib+100*PageSize+17, 20)
	src.zero = func(page int64) bool { return page%64 >= 60 && page < 1600 }
	for p := int64(0); p < int64(len(src.data))/PageSize; p++ {
		if src.zero(p) {
			clear(src.data[p*PageSize : (p+1)*PageSize])
		}
	}
	out := newSink(src.Size())
	rec := NewRecorder()
	q := newQueue(t, Options{Files: []File{src}, Names: []string{"pages-1.img"}, Sink: out, RunBytes: mib,
		Memory: 8 * mib, Recorder: rec})
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 0))
			for range 200 {
				off := rnd.Int64N(src.Size())
				p := make([]byte, 1+rnd.IntN(300<<10))
				n, err := q.Read(context.Background(), 0, off, p)
				if want := min(int64(len(p)), src.Size()-off); int64(n) != want ||
					(err != nil) != (want < int64(len(p))) || err != nil && err != io.EOF {
					t.Errorf("read %d at %d: %d, %v", len(p), off, n, err)
				}
				if !bytes.Equal(p[:n], src.data[off:off+int64(n)]) {
					t.Errorf("read %d at %d: wrong bytes", len(p), off)
				}
			}
		})
	}
	q.Sweep([]Range{{0, 0, src.Size()}})
	readers.Wait()
	drain(t, q)
	if !bytes.Equal(out.got, src.data) {
		t.Error("the sink's contents differ")
	}
	if p := rec.Profile(); p.Bytes() == 0 || p.Files[0] != "pages-1.img" {
		t.Errorf("recorded %d bytes of %v", p.Bytes(), p.Files)
	}
	if n, err := q.Read(context.Background(), 0, src.Size(), make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
}

func TestReadFailsAlone(t *testing.T) {
	src := newSource(mib, 21)
	src.bad = func(page int64) bool { return page == 7 }
	q := newQueue(t, Options{Files: []File{src}})
	if _, err := q.Read(context.Background(), 0, 7*PageSize+5, make([]byte, 10)); !errors.Is(err, errBad) {
		t.Errorf("a bad page: %v", err)
	}
	p := make([]byte, PageSize)
	if n, err := q.Read(context.Background(), 0, 6*PageSize, p); n != PageSize || err != nil ||
		!bytes.Equal(p, src.data[6*PageSize:7*PageSize]) {
		t.Errorf("the page before: %d, %v", n, err)
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	src := newSource(mib, 22)
	src.gate = make(chan struct{})
	q := newQueue(t, Options{Files: []File{src}})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := q.Read(ctx, 0, 0, make([]byte, 10)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(src.gate)
}
