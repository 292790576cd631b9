package gcm

import (
	"crypto/aes"
	"crypto/cipher"
	"sync"
)

// fallback encrypts by crypto/cipher, which wants tags behind the ciphertext.
type fallback struct{ aead cipher.AEAD }

// buffers hold a ciphertext with its tag.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (f *fallback) set(key *[KeySize]byte) {
	b, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // keys have 32 bytes
	}
	if f.aead, err = cipher.NewGCM(b); err != nil {
		panic(err)
	}
}

func (f *fallback) seal(dst, plain []byte, nonce *[NonceSize]byte) (tag [TagSize]byte) {
	buf := buffers.Get().(*[]byte)
	*buf = f.aead.Seal((*buf)[:0], nonce[:], plain, nil)
	copy(tag[:], (*buf)[copy(dst, *buf):])
	buffers.Put(buf)
	return tag
}

func (f *fallback) open(dst, sealed []byte, nonce *[NonceSize]byte, tag *[TagSize]byte) bool {
	buf := buffers.Get().(*[]byte)
	*buf = append(append((*buf)[:0], sealed...), tag[:]...)
	_, err := f.aead.Open(dst[:0:len(dst)], nonce[:], *buf, nil)
	buffers.Put(buf)
	if err != nil {
		clear(dst)
	}
	return err == nil
}
