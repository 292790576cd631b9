package prefetch

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

func packTo(t testing.TB, files []File, names []string, hot []Range) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "hot")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := Pack(f, files, names, hot)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != n {
		t.Errorf("%d bytes written, the file has %v (%v)", n, st.Size(), err)
	}
	return path
}

func openPacked(t testing.TB, path string, names []string) *Packed {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenPacked(f, st.Size(), names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func hotRanges(src *pieced, n int) (hot []Range) {
	rnd := rand.New(rand.NewPCG(5, 5))
	for range n {
		off := rnd.Int64N(src.Size()/PageSize) * PageSize
		hot = append(hot, Range{0, off, min((1+rnd.Int64N(40))*PageSize, src.Size()-off)})
	}
	return hot
}

// A packed hot set brings what it has in its own blocks, whatever else goes on,
// and nothing is delivered twice.
func TestPacked(t *testing.T) {
	src := newPieced(24*mib+100, 15)
	src.zero = func(page int64) bool { return page%13 == 5 }
	for p := int64(0); p*PageSize < src.Size(); p++ {
		if src.zero(p) {
			clear(src.data[p*PageSize : min((p+1)*PageSize, src.Size())])
		}
	}
	names, hot := []string{"pages-1.img"}, hotRanges(src, 100)
	path := packTo(t, []File{src}, names, hot)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		damage bool
	}{{"sound", false}, {"damaged", true}} {
		t.Run(c.name, func(t *testing.T) {
			b := slices.Clone(whole)
			if c.damage {
				b[blockBytes+77] ^= 1
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			p := openPacked(t, path, names)
			if len(p.blocks) < 3 {
				t.Fatalf("%d blocks", len(p.blocks))
			}
			src.reads = nil
			out := newSink(src.Size())
			q := newQueue(t, Options{Files: []File{src}, Names: names, Sink: out, Hot: hot, Packed: p, RunBytes: mib,
				Memory: 8 * mib, Workers: 3})
			q.Warm()
			drain(t, q)
			if n := len(src.taken()); (n > 0) != c.damage {
				t.Errorf("%d reads from where it is stored", n)
			}
			for _, b := range p.blocks {
				for _, r := range b.ranges {
					if !bytes.Equal(out.got[r.Off:r.End()], src.data[r.Off:r.End()]) {
						t.Fatalf("%v differs", r)
					}
				}
			}
			for i := range 50 {
				q.Demand(Range{0, int64(i) * 100 * PageSize, PageSize}, false)
			}
			q.Sweep([]Range{{0, 0, src.Size()}})
			drain(t, q)
			if !bytes.Equal(out.got, src.data) {
				t.Error("contents differ")
			}
			if i := slices.IndexFunc(out.times, func(n int) bool { return n != 1 }); i >= 0 {
				t.Errorf("page %d was delivered %d times", i, out.times[i])
			}
		})
	}
}

// What has come of a packed hot set is brought, and no more; the rest when it has come.
func TestPackedComes(t *testing.T) {
	src := newPieced(24*mib, 15)
	names, hot := []string{"pages-1.img"}, hotRanges(src, 100)
	p := openPacked(t, packTo(t, []File{src}, names, hot), names)
	src.reads = nil
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Names: names, Sink: out, Hot: hot, Packed: p, HotAway: true,
		RunBytes: mib, Memory: 8 * mib, Workers: 3})
	q.Warm()
	brought := func() (n int) {
		out.mu.Lock()
		defer out.mu.Unlock()
		for _, b := range p.blocks {
			if r := b.ranges[0]; out.times[r.Off/PageSize] > 0 {
				n++
			}
		}
		return n
	}
	for n := range p.blocks {
		q.HotArrived(p.blocks[n].off + 1) // not all of the block
		for end := time.Now().Add(time.Minute); brought() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d blocks of %d were brought", brought(), n)
			}
		}
		if k := brought(); k > n {
			t.Fatalf("%d blocks were brought, and %d have come", k, n)
		}
	}
	if q.HotDone() {
		t.Error("done before all has come")
	}
	q.HotArrived(p.Bytes())
	drain(t, q)
	if len(src.taken()) > 0 || !q.HotDone() {
		t.Errorf("%d reads from where it is stored", len(src.taken()))
	}
}

// Who waits for a page of a block that turns out to be damaged does not wait for the hot set.
func TestDemandInDamagedBlock(t *testing.T) {
	src := newPieced(4*mib, 15)
	names, hot := []string{"pages-1.img"}, hotRanges(src, 20)
	p := openPacked(t, packTo(t, []File{src}, names, hot), names)
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Names: names, Sink: out, Hot: hot, Packed: p, RunBytes: mib,
		Memory: 8 * mib, Workers: 1})
	q.mu.Lock()
	q.blocks = p.blocks[:1]
	r, _ := q.claimBlock()
	q.mu.Unlock()
	at := r.parts[len(r.parts)-1].End() - PageSize
	q.Demand(Range{0, at, PageSize}, false)
	q.mu.Lock()
	q.unpacked(r)
	n := len(q.demands)
	q.mu.Unlock()
	if n != 1 {
		t.Errorf("%d demands are left of one", n)
	}
	drain(t, q)
}

func TestPackedRefused(t *testing.T) {
	src := newPieced(4*mib, 16)
	names := []string{"pages-1.img"}
	path := packTo(t, []File{src}, names, hotRanges(src, 20))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(whole)
	bad[len(bad)-packedTrailer-3] ^= 1
	for name, c := range map[string]struct {
		b     []byte
		names []string
	}{
		"empty":       {nil, names},
		"cut":         {whole[:len(whole)-1], names},
		"cut in half": {whole[:len(whole)/2], names},
		"bad table":   {bad, names},
		"other files": {whole, []string{"pages-2.img"}},
	} {
		if err := os.WriteFile(path, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenPacked(f, int64(len(c.b)), c.names); !errors.Is(err, ErrPacked) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPackedTable(f *testing.F) {
	src := newPieced(4*mib, 17)
	names := []string{"pages-1.img"}
	b, err := os.ReadFile(packTo(f, []File{src}, names, hotRanges(src, 20)))
	if err != nil {
		f.Fatal(err)
	}
	var whole Packed
	for i := len(b) - packedTrailer; i >= 0; i-- {
		if whole.blocks = nil; whole.parse(b[i:len(b)-packedTrailer], int64(i), names) == nil {
			f.Add(b[i:len(b)-packedTrailer], int64(i))
			break
		}
	}
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, table []byte, size int64) {
		defer budget.Watch(t, len(table))()
		var p Packed
		if p.parse(table, size, names) != nil {
			return
		}
		var at int64
		for _, b := range p.blocks {
			n := int64(0)
			for _, r := range b.ranges {
				if n += r.Len; r.File != 0 || r.Off < 0 || r.Len <= 0 {
					t.Errorf("range %v", r)
				}
			}
			if b.off != at || b.len != n || n > blockBytes {
				t.Errorf("block %+v", b)
			}
			at += n
		}
		if at != size {
			t.Errorf("%d bytes of blocks, not %d", at, size)
		}
	})
}

// While a profile is recorded a demand brings no more than what may be touched
// with it, and what it brought is in the profile.
func TestRecordedDemands(t *testing.T) {
	src := newPieced(8*mib, 18)
	out := newSink(src.Size())
	rec := NewRecorder()
	q := newQueue(t, Options{Files: []File{src}, Names: []string{"p"}, Sink: out, RunBytes: mib, Memory: 8 * mib,
		Recorder: rec})
	q.Demand(Range{0, 5 * mib, PageSize}, false)
	drain(t, q)
	at := int64(mib)
	for range 4 {
		q.Demand(Range{0, at, PageSize}, false)
		drain(t, q)
		for at < src.Size() && out.times[at/PageSize] == 1 {
			at += PageSize
		}
	}
	want := []Range{{0, 5 * mib, recordBytes}, {0, mib, 15 * recordBytes}}
	if got := rec.Profile().Touches; !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}
