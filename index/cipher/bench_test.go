package cipher

import (
	"testing"
)

func BenchmarkCoder(b *testing.B) {
	c := coder(b, 1)
	var plain *Coder
	content := noise(256 << 10)
	encrypted, seal := c.EncryptSlot(nil, Salt{1}, 7, content)
	slot := make([]byte, len(content), len(content)+TagSize)
	for name, f := range map[string]func(){
		"id/plain": func() { plain.Sum(content) },
		"id/keyed": func() { c.Sum(content) },
		"encrypt": func() {
			buf := c.Buffer(len(content) + TagSize)
			c.EncryptSlot(buf, Salt{1}, 7, content)
			c.Done(buf)
		},
		"decrypt": func() {
			copy(slot, encrypted)
			if err := c.DecryptSlot(slot, seal, 7); err != nil {
				b.Fatal(err)
			}
		},
		"record": func() { c.Seal("x", content[:100]) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				f()
			}
		})
	}
}
