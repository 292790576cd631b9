package index

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// TestLargeWritesUntilSealed: a seal comes at any moment between large writes to the end of a file. Each write that was
// answered is in the checkpoint, and no other. The writer uses one buffer again and again, as a mount does.
func TestLargeWritesUntilSealed(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	want := memory(5, 24<<20)
	for i := range 24 {
		name := fmt.Sprint("c", i)
		d, f := draftFile(t, s, name, "pages-1.img")
		r := rand.New(rand.NewPCG(uint64(i), 7))
		enough, at := make(chan struct{}), r.IntN(len(want)/2)
		answered := 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			buf := make([]byte, 1<<20)
			reached := false
			for answered < len(want) {
				n := min(1+r.IntN(len(buf)), len(want)-answered)
				copy(buf, want[answered:answered+n])
				if _, err := f.WriteAt(buf[:n], int64(answered)); err != nil {
					if fault.ClassOf(err) != fault.ReadOnly {
						t.Error(err)
					}
					break
				}
				answered += n
				clear(buf)
				if !reached && answered > at {
					reached = true
					close(enough)
				}
			}
		}()
		<-enough
		info, err := d.Seal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-ended
		if info.Logical != int64(answered) {
			t.Fatalf("%d bytes were answered, %d are sealed", answered, info.Logical)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		sealed := openFile(t, s, name, "pages-1.img")
		got := make([]byte, answered)
		if _, err := sealed.ReadAt(got, 0); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		sealed.Close()
		if !bytes.Equal(got, want[:answered]) {
			t.Fatal("other bytes are sealed than were written")
		}
	}
}

// TestLargeWritesSeenAtOnce: what has been written is there for whoever asks next: its size, its bytes, changes of it.
func TestLargeWritesSeenAtOnce(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	d, f := draftFile(t, s, "a", "amdgpu-pages-1-0001.img") // pages begin behind a header
	other, err := d.Open("amdgpu-pages-1-0001.img")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 7))
	var want []byte
	for i := range 400 {
		p := memory(uint64(i), 1+r.IntN(1<<20))
		if _, err := f.WriteAt(p, int64(len(want))); err != nil {
			t.Fatal(err)
		}
		want = append(want, p...)
		switch r.IntN(5) {
		case 0:
			if got := other.Size(); got != int64(len(want)) {
				t.Fatalf("%d bytes were written, the size is %d", len(want), got)
			}
		case 1:
			off := r.IntN(len(want))
			got := make([]byte, min(len(want)-off, 300<<10))
			if _, err := other.ReadAt(got, int64(off)); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want[off:off+len(got)]) {
				t.Fatal("other bytes are read than were written")
			}
		case 2:
			want = want[:r.IntN(len(want))]
			if err := other.Truncate(int64(len(want))); err != nil {
				t.Fatal(err)
			}
		case 3:
			off := r.IntN(len(want))
			n := copy(want[off:], p[:min(len(p), 5000)])
			if _, err := other.WriteAt(p[:n], int64(off)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	sealAndCompare(t, s, d, "amdgpu-pages-1-0001.img", want)
}

// TestNothingLeftByAbort: a checkpoint is given up right behind a large write, which fills a segment of a file that is
// open. Nothing of the checkpoint stays in the index.
func TestNothingLeftByAbort(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	page := bytes.Repeat([]byte{1}, chunk.PageSize)
	var cuts []int64
	for i := range int64(manifest.MaxChunks) {
		cuts = append(cuts, (i+1)*chunk.PageSize)
	}
	last := bytes.Repeat(page, 64)
	rest := bytes.Repeat(page, manifest.MaxChunks-64)
	for i := range 8 {
		d, f := draftFile(t, s, fmt.Sprint("c", i), "pages-1.img")
		f.CutAt(cuts)
		for _, p := range [][]byte{rest, last} {
			if _, err := f.WriteAt(p, f.Size()); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(d.Abort(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.chunks.DB.MetaKeys(manifest.SegmentPrefix, func(key string) error {
		t.Errorf("%s is left", key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
