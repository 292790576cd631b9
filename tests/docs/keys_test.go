package docs

import (
	"crypto/ecdh"
	"crypto/rand"
	"strings"
	"testing"
)

// ageKeys makes what age-keygen makes: an identity and its recipient, X25519 keys in Bech32.
func ageKeys(t *testing.T) (identity, recipient string) {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToUpper(bech32("age-secret-key-", key.Bytes())), bech32("age", key.PublicKey().Bytes())
}

// bech32 writes data as BIP 173 has it.
func bech32(prefix string, data []byte) string {
	var values []byte // five bits each
	bits, have := uint32(0), 0
	for _, b := range data {
		bits, have = bits<<8|uint32(b), have+8
		for ; have >= 5; have -= 5 {
			values = append(values, byte(bits>>(have-5)&31))
		}
	}
	if have > 0 {
		values = append(values, byte(bits<<(5-have)&31))
	}
	sum := uint32(1)
	add := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	for _, c := range []byte(prefix) {
		add(c >> 5)
	}
	add(0)
	for _, c := range []byte(prefix) {
		add(c & 31)
	}
	for _, v := range values {
		add(v)
	}
	for range 6 {
		add(0)
	}
	sum ^= 1
	for i := range 6 {
		values = append(values, byte(sum>>(5*(5-i))&31))
	}
	text := prefix + "1"
	for _, v := range values {
		text += string("qpzry9x8gf2tvdw0s3jn54khce6mua7l"[v])
	}
	return text
}
