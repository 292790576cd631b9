package prefetch

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

func TestStoreFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(t.Context(), dir, index.Options{FreeFloor: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	content := newSource(12*mib+5*PageSize, 30).data
	for _, z := range [][2]int64{{0, mib}, {3*mib + 3*PageSize, 5 * mib}, {9 * mib, 9*mib + PageSize},
		{12 * mib, 12*mib + 5*PageSize}} {
		clear(content[z[0]:z[1]])
	}
	d, err := s.Create(t.Context(), "c", index.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Create("pages-1.img", 0o644)
	if err == nil {
		_, err = w.WriteAt(content, 0)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		_, err = d.Seal(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Checkpoint("c")
	if err != nil {
		t.Fatal(err)
	}
	open, err := c.Open("pages-1.img")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	f := StoreFile{open}

	rnd := rand.New(rand.NewPCG(5, 5))
	for range 500 {
		a, b := rnd.Int64N(f.Size()/PageSize), rnd.Int64N(f.Size()/PageSize)
		off, end := min(a, b)*PageSize, (max(a, b)+1)*PageSize
		start, stop, err := f.Data(off, end)
		if err != nil || start < off || stop > end || start > stop || start == stop && start != end ||
			(start|stop)%PageSize != 0 {
			t.Fatalf("data of %d-%d is %d-%d, %v", off, end, start, stop, err)
		}
		if bytes.ContainsFunc(content[off:start], func(r rune) bool { return r != 0 }) {
			t.Fatalf("data of %d-%d begins at %d: what is before is not zero", off, end, start)
		}
	}

	out := newSink(f.Size())
	q := newQueue(t, Options{Files: []File{f}, Sink: out, RunBytes: mib, Memory: 4 * mib})
	q.Sweep([]Range{{0, 0, f.Size()}})
	drain(t, q)
	if !bytes.Equal(out.got, content) {
		t.Error("contents differ")
	}
	if st := q.Stats(); st.ZeroBytes < 2*mib || st.FailedBytes != 0 {
		t.Errorf("%+v", st)
	}
}
