package chunk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestTight(t *testing.T) {
	const n = 1 << 20
	tight, err := NewTight(n)
	if err != nil {
		t.Fatal(err)
	}
	defer tight.Close()
	coder, err := NewCoder(1, n)
	if err != nil {
		t.Fatal(err)
	}
	defer coder.Close()
	r := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for len(text) < n {
		text = fmt.Appendf(text, "object %x has %d fields; ", r.Uint32(), r.IntN(9))
	}
	text = text[:n]
	noise := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	digits := make([]byte, n) // nothing repeats, and six bits of eight say all
	for i := range digits {
		digits[i] = byte(r.IntN(64))
	}
	scratch := make([]byte, MaxEncoded(n))
	fast, codec := coder.Encode(PolicyAuto, text, scratch)
	if codec != S2 {
		t.Fatalf("text is stored as %v", codec)
	}
	was := len(fast)
	for name, c := range map[string]struct {
		content []byte
		codec   Codec
		stored  int
		want    bool
	}{
		"text":                         {text, S2, was, true},
		"text that was not compressed": {text, Raw, n, true},
		"digits":                       {digits, Raw, n, true},
		"noise":                        {noise, Raw, n, false},
		"text stored small already":    {text, S2, 2 * PageSize, false},
		"one page":                     {text[:2*PageSize], S2, PageSize, false},
		"zstd":                         {text, Zstd, was, false},
		"planes":                       {text, Planes, was, false},
	} {
		out := tight.Encode(c.content, c.codec, c.stored, scratch)
		if (out != nil) != c.want {
			t.Errorf("%s: %d bytes of %d", name, len(out), c.stored)
		}
		if out == nil {
			continue
		}
		if pages(len(out)) >= pages(c.stored) {
			t.Errorf("%s: %d bytes in place of %d", name, len(out), c.stored)
		}
		if got, err := coder.Decode(Zstd, out, make([]byte, n), len(c.content)); err != nil ||
			!bytes.Equal(got, c.content) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
