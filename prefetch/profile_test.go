package prefetch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/tests/budget"
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
	want := &Profile{[]string{"a", "b"},
		[]Range{{0, 8 * PageSize, PageSize}, {1, 0, PageSize}, {0, 9 * PageSize, 4 * PageSize}}}
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
		{Files: []string{"a", "", "c"},
			Touches: []Range{{2, 1 << 40, 1 << 30}, {0, 5 * PageSize, PageSize}, {1, 0, 7 * PageSize}}},
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

// TestLimitsOfProfiles: what is recorded can be stored, and what is stored can be read, however much was touched.
func TestLimitsOfProfiles(t *testing.T) {
	r := NewRecorder()
	for i := range int64(maxTouches + 10) {
		r.Touch("pages-1.img", (i*7919%(1<<30))*2*PageSize*1000, 1)
	}
	for i := range maxProfileFiles + 10 {
		r.Touch(fmt.Sprint(i), 0, 1)
	}
	many := r.Profile()
	if len(many.Touches) > maxTouches {
		t.Errorf("%d touches recorded", len(many.Touches))
	}
	long := &Profile{Files: []string{"a", string(make([]byte, maxNameBytes+1))},
		Touches: []Range{{1, 0, PageSize}, {0, 0, PageSize}}}
	files := &Profile{Files: make([]string, maxProfileFiles+10),
		Touches: []Range{{3, 0, PageSize}, {maxProfileFiles + 3, 0, PageSize}}}
	wide := &Profile{Files: make([]string, 5000)}
	for i := range wide.Files {
		wide.Files[i] = string(make([]byte, maxNameBytes))
	}
	for name, p := range map[string]*Profile{"touches": many, "long name": long, "files": files, "long names": wide} {
		got, err := DecodeProfile(p.Encode())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(p.Touches) > 0 && len(got.Touches) == 0 {
			t.Errorf("%s: nothing is left", name)
		}
	}
	if _, err := DecodeProfile(append([]byte(profileMagic), make([]byte, maxProfile)...)); !errors.Is(err, ErrProfile) {
		t.Error(err)
	}
}

func FuzzDecodeProfile(f *testing.F) {
	for _, p := range profiles() {
		f.Add(p.Encode())
	}
	f.Add([]byte("GPRF\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
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
				if r.File < 0 || r.File >= len(p.Files) || r.Off < 0 || r.Len <= 0 || r.End() < r.Off ||
					r.Off%PageSize != 0 || r.Len%PageSize != 0 {
					t.Fatalf("touch %+v", r)
				}
			}
			if again, err := DecodeProfile(p.Encode()); err != nil || !reflect.DeepEqual(again, p) {
				t.Fatalf("%+v came back as %+v, %v", p, again, err)
			}
		}
	})
}
