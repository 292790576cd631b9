package chunk

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/klauspost/compress/s2"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

// split runs data through a splitter as a file would and gives the chunks of its data stream.
func split(t testing.TB, p Params, data []byte) (chunks [][]byte, zero int) {
	t.Helper()
	s := NewSplitter(p)
	var cur []byte
	for off := 0; off < len(data); off += PageSize {
		page := data[off:min(off+PageSize, len(data))]
		if IsZero(page) {
			zero += len(page)
			if s.Zero(len(page)) {
				chunks, cur = append(chunks, cur), nil
			}
			continue
		}
		cur = append(cur, page...)
		if s.Data(page) {
			chunks, cur = append(chunks, cur), nil
		}
	}
	if len(cur) > 0 {
		chunks = append(chunks, cur)
	}
	return chunks, zero
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

func TestSplitSizes(t *testing.T) {
	p := DefaultParams()
	data := random(1, 128<<20)
	chunks, _ := split(t, p, data)
	for i, c := range chunks[:len(chunks)-1] {
		if len(c) < p.Min || len(c) > p.Max {
			t.Fatalf("chunk %d has %d bytes, want %d to %d", i, len(c), p.Min, p.Max)
		}
	}
	avg := len(data) / len(chunks)
	if avg < p.Avg*3/4 || avg > p.Avg*5/4 {
		t.Errorf("average chunk is %d bytes, want about %d", avg, p.Avg)
	}
	if got := bytes.Join(chunks, nil); !bytes.Equal(got, data) {
		t.Error("the chunks are not the data")
	}
}

func TestSplitSurvivesInsertedPages(t *testing.T) {
	data := random(2, 32<<20)
	moved := append(append(append([]byte{}, data[:5<<20]...), random(3, 3*PageSize)...), data[5<<20:]...)
	a, _ := split(t, DefaultParams(), data)
	b, _ := split(t, DefaultParams(), moved)
	have := map[ID]bool{}
	for _, c := range a {
		have[Sum(c)] = true
	}
	lost := 0
	for _, c := range b {
		if !have[Sum(c)] {
			lost += len(c)
		}
	}
	if lost > 2<<20 {
		t.Errorf("three pages inserted into 32 MiB made %d bytes new, want at most 2 MiB", lost)
	}
}

func TestZeroPagesAreTakenOut(t *testing.T) {
	data := random(4, 8<<20)
	holed := make([]byte, 0, 16<<20)
	for off := 0; off < len(data); off += PageSize {
		holed = append(holed, data[off:off+PageSize]...)
		if off/PageSize%3 == 0 {
			holed = append(holed, make([]byte, PageSize)...)
		}
	}
	a, _ := split(t, DefaultParams(), data)
	b, zero := split(t, DefaultParams(), holed)
	if zero != len(holed)-len(data) {
		t.Errorf("found %d zero bytes, want %d", zero, len(holed)-len(data))
	}
	if len(a) != len(b) {
		t.Errorf("scattered zero pages changed %d chunks into %d", len(a), len(b))
	}
}

func TestCodecs(t *testing.T) {
	c, err := NewCoder(2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := bytes.Repeat([]byte("a page of a structured heap; "), 10000)
	for _, tt := range []struct {
		name    string
		policy  Policy
		content []byte
		codec   Codec
	}{
		{"auto keeps random raw", PolicyAuto, random(5, 256<<10), Raw},
		{"auto packs text", PolicyAuto, text, S2},
		{"auto takes bfloat16 apart", PolicyAuto, bfloat16(8, 512<<10), Planes},
		{"auto takes an odd length of it, too", PolicyAuto, bfloat16(9, 300<<10+4104), Planes},
		{"zstd", PolicyZstd, text, Zstd},
		{"s2", PolicyS2, text, S2},
		{"none", PolicyNone, text, Raw},
		{"a page is left alone", PolicyZstd, text[:PageSize], Raw},
		{"what does not pay is left alone", PolicyZstd, random(6, 128<<10), Raw},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored, codec := c.Encode(tt.policy, tt.content, make([]byte, 0, MaxEncoded(len(tt.content))))
			if codec != tt.codec {
				t.Errorf("stored as %v, want %v", codec, tt.codec)
			}
			got, err := c.Decode(codec, stored, make([]byte, 0, len(tt.content)), len(tt.content))
			if err != nil || !bytes.Equal(got, tt.content) {
				t.Errorf("came back different: %v", err)
			}
			if _, err := c.Decode(codec, stored, make([]byte, 0, len(tt.content)+1), len(tt.content)+1); err == nil {
				t.Error("a wrong length was accepted")
			}
		})
	}
	if _, err := c.Decode(Codec(9), text, nil, 1); err == nil {
		t.Error("an unknown codec was accepted")
	}
}

// bfloat16 makes weights: normal numbers of mean 0, cut to their upper 16 bits.
func bfloat16(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, 0, n)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(r.NormFloat64()*0.02))>>16))
	}
	return b
}

func TestPlanesSaveAQuarterOfWeights(t *testing.T) {
	content := bfloat16(1, 1<<20)
	common, pays := commonHigh(content)
	if !pays {
		t.Fatal("weights do not look like 16-bit numbers")
	}
	stored := encodePlanes(content, common, nil)
	if r := float64(len(stored)) / float64(len(content)); r > 0.76 {
		t.Errorf("stored %.2f of the size, want 0.76 at most", r)
	}
	if _, pays := commonHigh(random(1, 1<<20)); pays {
		t.Error("random bytes look like 16-bit numbers")
	}
}

// TestPlanesWithRareValues mixes in values that no nibble names, anywhere.
func TestPlanesWithRareValues(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 50 {
		content := bfloat16(uint64(n), 8*(1+r.IntN(5000)))
		for range r.IntN(len(content) / 16) {
			content[r.IntN(len(content))] = byte(r.Uint32())
		}
		common, _ := commonHigh(content)
		stored := encodePlanes(content, common, nil)
		if stored == nil {
			t.Fatalf("%d: not encoded", n)
		}
		got := make([]byte, len(content))
		if err := decodePlanes(stored, got); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d: came back different: %v", n, err)
		}
	}
}

func BenchmarkPlanes(b *testing.B) {
	content := bfloat16(1, 512<<10)
	common, _ := commonHigh(content)
	stored := encodePlanes(content, common, nil)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		scratch := make([]byte, 0, MaxEncoded(len(content)))
		for b.Loop() {
			encodePlanes(content, common, scratch)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		dst := make([]byte, len(content))
		for b.Loop() {
			if err := decodePlanes(stored, dst); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("probe", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			commonHigh(content)
		}
	})
}

func TestParams(t *testing.T) {
	if err := DefaultParams().Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range []Params{{}, {Min: 4096, Avg: 4096, Max: 8192}, {Min: 4000, Avg: 8192, Max: 16384},
		{Min: 4096, Avg: 8192, Max: 32 << 20}} {
		if p.Validate() == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

func FuzzDecode(f *testing.F) {
	c, err := NewCoder(1, 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	text := bytes.Repeat([]byte("abcd"), 4096)
	for _, p := range []Policy{PolicyZstd, PolicyS2, PolicyNone} {
		stored, codec := c.Encode(p, text, make([]byte, 0, MaxEncoded(len(text))))
		f.Add(uint8(codec), stored, len(text))
	}
	weights := bfloat16(1, 16<<10)
	weights[101] = 0x77
	common, _ := commonHigh(weights)
	f.Add(uint8(Planes), encodePlanes(weights, common, nil), len(weights))
	f.Fuzz(func(t *testing.T, codec uint8, stored []byte, want int) {
		defer budget.Watch(t, len(stored))()
		if want < 0 || want > 1<<20 {
			return
		}
		out, err := c.Decode(Codec(codec), stored, make([]byte, 0, want), want)
		if err == nil && len(out) != want {
			t.Fatalf("%d bytes came out, not %d", len(out), want)
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	data := random(7, 16<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		s := NewSplitter(DefaultParams())
		for off := 0; off < len(data); off += PageSize {
			p := data[off : off+PageSize]
			if !IsZero(p) {
				s.Data(p)
			}
		}
	}
}

// TestBombs: what is decoded has a length that is known before, and a chunk that has another one costs no more than
// that.
func TestBombs(t *testing.T) {
	c, err := NewCoder(1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	zeros := make([]byte, 512<<20)
	bombs := map[Codec][]byte{
		Zstd: c.enc.EncodeAll(zeros, nil), S2: s2.Encode(nil, zeros), Planes: make([]byte, 100), Codec(9): {1},
	}
	zeros = nil
	dst := make([]byte, 0, 8192)
	for codec, bomb := range bombs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := c.Decode(codec, bomb, dst, 8192); err == nil {
			t.Errorf("%v: decoded", codec)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("%v: %d bytes of memory for %d", codec, n, len(bomb))
		}
	}
}
