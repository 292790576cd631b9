package crc32c

import (
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The figures of RFC 3720, B.4.
func TestKnown(t *testing.T) {
	up := make([]byte, 32)
	for i := range up {
		up[i] = byte(i)
	}
	for _, c := range []struct {
		p    []byte
		want uint32
	}{{make([]byte, 32), 0x8a9136aa}, {up, 0x46dd794e}, {[]byte("123456789"), 0xe3069283}} {
		if got := Checksum(c.p); got != c.want {
			t.Errorf("%x: %#x, want %#x", c.p, got, c.want)
		}
	}
}

// Whatever the length, the alignment and the beginning, it is what hash/crc32 says.
func TestLikeHashCRC32(t *testing.T) {
	if !canFold {
		t.Log("this processor cannot fold")
	}
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{3}).Read(b)
	check := func(p []byte) {
		t.Helper()
		crc := r.Uint32()
		if got, want := Update(crc, p), crc32.Update(crc, table, p); got != want {
			t.Fatalf("%d bytes after %#x: %#x, want %#x", len(p), crc, got, want)
		}
	}
	for n := range 2 * worthwhile {
		check(b[n%67:][:n])
	}
	for range 500 {
		from := r.IntN(len(b))
		check(b[from:][:r.IntN(len(b)-from)])
	}
	check(make([]byte, 1<<20))
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), make([]byte, 2*worthwhile))
	f.Add(^uint32(0), []byte("x"))
	f.Fuzz(func(t *testing.T, crc uint32, p []byte) {
		if got, want := Update(crc, p), crc32.Update(crc, table, p); got != want {
			t.Fatalf("%d bytes after %#x: %#x, want %#x", len(p), crc, got, want)
		}
	})
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{worthwhile, 64 << 10, 1 << 20, 64 << 20} {
		p := make([]byte, n)
		rand.NewChaCha8([32]byte{}).Read(p)
		for name, sum := range map[string]func([]byte) uint32{
			"folded": Checksum,
			"hash":   func(p []byte) uint32 { return crc32.Checksum(p, table) },
		} {
			b.Run(strconv.Itoa(n)+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(n))
				for range b.N {
					sum(p)
				}
			})
		}
	}
}
