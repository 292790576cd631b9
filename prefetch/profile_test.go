package prefetch

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/gpucr/gpucr-fs/index/crc32c"
)

func TestRecorderKeepsFirstTouches(t *testing.T) {
	r := NewRecorder()
	for _, c := range []struct {
		name   string
		off, n int64
	}{
		{"a", 8*PageSize + 5, 1}, {"b", 0, PageSize}, {"a", 9 * PageSize, 2 * PageSize}, {"a", 11 * PageSize, 1},
		{"a", 8 * PageSize, 5 * PageSize}, {"b", 0, 1}, {"a", 0, 0},
	} {
		r.Touch(c.name, c.off, c.n)
	}
	want := &Profile{[]string{"a", "b"}, []Range{{0, 8 * PageSize, PageSize}, {1, 0, PageSize}, {0, 9 * PageSize, 4 * PageSize}}}
	if got := r.Profile(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestProfileServesDescendants(t *testing.T) {
	p := &Profile{[]string{"pages-1.img", "pages-2.img", "gone"}, []Range{
		{1, 4 * PageSize, 4 * PageSize}, {2, 0, PageSize}, {0, 0, PageSize}, {1, 100 * PageSize, PageSize}}}
	got := p.Ranges([]string{"new", "pages-2.img", "pages-1.img"}, []int64{PageSize, 6 * PageSize, PageSize})
	want := []Range{{1, 4 * PageSize, 2 * PageSize}, {2, 0, PageSize}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func profiles() []*Profile {
	return []*Profile{
		{},
		{Files: []string{"pages-1.img"}, Touches: []Range{{0, 0, PageSize}}},
		{Files: []string{"a", "", "c"}, Touches: []Range{{2, 1 << 40, 1 << 30}, {0, 5 * PageSize, PageSize}, {1, 0, 7 * PageSize}}},
	}
}

func TestProfileRoundTrip(t *testing.T) {
	for _, p := range profiles() {
		b := p.Encode()
		got, err := DecodeProfile(b)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
		for i := range b {
			c := append([]byte(nil), b...)
			c[i] ^= 0x10
			if _, err := DecodeProfile(c); !errors.Is(err, ErrProfile) {
				t.Errorf("byte %d of %d spoilt: %v", i, len(b), err)
			}
			if _, err := DecodeProfile(b[:i]); !errors.Is(err, ErrProfile) {
				t.Errorf("cut to %d of %d bytes: %v", i, len(b), err)
			}
		}
	}
}

func FuzzDecodeProfile(f *testing.F) {
	for _, p := range profiles() {
		f.Add(p.Encode())
	}
	f.Add([]byte("GPRF\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// With a right checksum, else little gets past it.
		fixed := append([]byte(nil), b...)
		if len(fixed) > 4 {
			fixed = binary.LittleEndian.AppendUint32(fixed[:len(fixed)-4], crc32c.Checksum(fixed[:len(fixed)-4]))
		}
		for _, in := range [][]byte{b, fixed} {
			p, err := DecodeProfile(in)
			if err != nil {
				continue
			}
			for _, r := range p.Touches {
				if r.File < 0 || r.File >= len(p.Files) || r.Off < 0 || r.Len <= 0 || r.End() < r.Off || r.Off%PageSize != 0 || r.Len%PageSize != 0 {
					t.Fatalf("touch %+v", r)
				}
			}
			if again, err := DecodeProfile(p.Encode()); err != nil || !reflect.DeepEqual(again, p) {
				t.Fatalf("%+v came back as %+v, %v", p, again, err)
			}
		}
	})
}
