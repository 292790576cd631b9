package gcm

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"testing"
)

func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// each runs a test with what the processor has, and without.
func each(t *testing.T, test func(t *testing.T)) {
	had := wide
	defer func() { wide = had }()
	for _, w := range []bool{had, false} {
		wide = w
		t.Run(fmt.Sprintf("wide=%v", w), test)
	}
}

// lengths are all up to some groups, and others around stripes and beyond.
func lengths() (out []int) {
	for n := range 3*group + 40 {
		out = append(out, n)
	}
	for _, n := range []int{stripe, 2 * stripe, 17 * stripe, 1 << 20} {
		for d := -40; d <= 40; d++ {
			out = append(out, n+d)
		}
	}
	return out
}

// TestAgainstTheLibrary: what is sealed is what crypto/cipher seals, and each opens what the other has sealed.
func TestAgainstTheLibrary(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, n := range lengths() {
			key, nonce := [KeySize]byte(noise(KeySize)), [NonceSize]byte(noise(NonceSize))
			b, err := aes.NewCipher(key[:])
			if err != nil {
				t.Fatal(err)
			}
			library, err := cipher.NewGCM(b)
			if err != nil {
				t.Fatal(err)
			}
			var k Key
			k.Set(&key)
			plain := noise(n)
			want := library.Seal(nil, nonce[:], plain, nil)
			for _, inPlace := range []bool{false, true} {
				in, out := bytes.Clone(plain), make([]byte, n)
				if inPlace {
					out = in
				}
				tag := k.Seal(out, in, &nonce)
				if !bytes.Equal(append(bytes.Clone(out), tag[:]...), want) {
					t.Fatalf("%d bytes (in place: %v) are sealed as others", n, inPlace)
				}
				back := make([]byte, n)
				if inPlace {
					back = out
				}
				if !k.Open(back, out, &nonce, &tag) || !bytes.Equal(back, plain) {
					t.Fatalf("%d bytes (in place: %v) do not come back", n, inPlace)
				}
			}
		}
	})
}

// TestAltered: one bit is enough for nothing to be opened, and nothing of the text is left in sight.
func TestAltered(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 15, 16, 17, group - 16, group, group + 1, stripe + 100, 1<<17 + 5} {
			var k, other Key
			key, nonce := [KeySize]byte(noise(KeySize)), [NonceSize]byte(noise(NonceSize))
			k.Set(&key)
			key[9] ^= 4
			other.Set(&key)
			plain, sealed := noise(n), make([]byte, n)
			tag := k.Seal(sealed, plain, &nonce)
			opens := func(what string, k *Key, sealed []byte, nonce [NonceSize]byte, tag [TagSize]byte) {
				t.Helper()
				to := bytes.Clone(plain)
				if k.Open(to[:len(sealed)], sealed, &nonce, &tag) {
					t.Errorf("%d bytes with %s are opened", n, what)
				}
				if len(bytes.Trim(to[:len(sealed)], "\x00")) > 0 {
					t.Errorf("%d bytes with %s leave something", n, what)
				}
			}
			for range 50 {
				if n > 0 {
					bad := bytes.Clone(sealed)
					bad[mathrand.IntN(n)] ^= 1 << mathrand.IntN(8)
					opens("an altered bit", &k, bad, nonce, tag)
				}
				badTag, badNonce := tag, nonce
				badTag[mathrand.IntN(TagSize)] ^= 1 << mathrand.IntN(8)
				badNonce[mathrand.IntN(NonceSize)] ^= 1 << mathrand.IntN(8)
				opens("another tag", &k, sealed, nonce, badTag)
				opens("another nonce", &k, sealed, badNonce, tag)
			}
			opens("another key", &other, sealed, nonce, tag)
			if n > 0 {
				opens("a byte less", &k, sealed[:n-1], nonce, tag)
			}
		}
	})
}

func TestClear(t *testing.T) {
	each(t, func(t *testing.T) {
		var k Key
		k.Set(&[KeySize]byte{1})
		if k.Clear(); k != (Key{}) {
			t.Error("something of the key is left")
		}
	})
}

func BenchmarkGCM(b *testing.B) {
	var k Key
	k.Set(&[KeySize]byte{1})
	text, sealed := noise(256<<10), make([]byte, 256<<10)
	nonce := &[NonceSize]byte{1}
	tag := k.Seal(sealed, text, nonce)
	for name, f := range map[string]func(){
		"seal": func() { k.Seal(sealed, text, nonce) },
		"open": func() { k.Open(text, sealed, nonce, &tag) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				f()
			}
		})
	}
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			k.Set(&[KeySize]byte{1})
		}
	})
}
