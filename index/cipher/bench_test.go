package cipher

import (
	"testing"
)

func BenchmarkCoder(b *testing.B) {
	c := coder(b, 1)
	var plain *Coder
	content := noise(256 << 10)
	for name, f := range map[string]func(){
		"id/plain": func() { plain.Sum(content) },
		"id/keyed": func() { c.Sum(content) },
		"encrypt": func() {
			buf := c.Buffer(len(content))
			c.EncryptSlot(buf, Salt{1}, 7, content)
			c.Done(buf)
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
