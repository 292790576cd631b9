package chunk

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestVectorPlanes holds the vector instructions to the plain code: the same bytes both ways, whatever the length and
// however many rare values.
func TestVectorPlanes(t *testing.T) {
	if !haveBlocks {
		t.Log("this processor has no AVX2: the plain code alone is used, and tested elsewhere")
		return
	}
	defer func() { haveBlocks = true }()
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 400 {
		content := bfloat16(uint64(n), 8*(1+r.IntN(3000)))
		switch n % 4 {
		case 1: // few different values: the table of common ones has zeros left over
			for i := range content {
				content[i] &= 3
			}
		case 2:
			for range r.IntN(len(content)) {
				content[r.IntN(len(content))] = byte(r.Uint32())
			}
		case 3: // the common values are not the same ones
			for i := range content {
				content[i] += byte(n)
			}
		}
		common, _ := commonHigh(content)
		haveBlocks = false
		plain := bytes.Clone(encodePlanes(content, common, nil))
		haveBlocks = true
		vector := encodePlanes(content, common, nil)
		if !bytes.Equal(plain, vector) {
			t.Fatalf("%d: %d bytes encoded to %d plainly, to %d or other ones by vectors", n, len(content), len(plain),
				len(vector))
		}
		if plain == nil {
			continue
		}
		for _, haveBlocks = range []bool{false, true} {
			got := make([]byte, len(content))
			if err := decodePlanes(plain, got); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d, vectors %v: came back different: %v", n, haveBlocks, err)
			}
			for _, cut := range []int{1, 7, len(content) / 8} {
				if cut < len(plain) {
					if err := decodePlanes(plain[:len(plain)-cut], got); err == nil {
						t.Fatalf("%d, vectors %v: decoded without its last %d bytes", n, haveBlocks, cut)
					}
				}
			}
		}
	}
}
