package cipher

import (
	"crypto/aes"
	aead "crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/gpucr/gpucr-fs/index/arena"
	"github.com/gpucr/gpucr-fs/index/chunk"
)

const (
	// KeySize is the length of a master key in bytes.
	KeySize = 32
	// SaltSize and TagSize are lengths in bytes.
	SaltSize = 16
	TagSize  = 16
	// Overhead is by how many bytes a sealed record is longer.
	Overhead = SaltSize + TagSize
)

// ErrOpen: what was to be opened is not what was sealed with this key.
var ErrOpen = errors.New("it does not decrypt: it was altered, or encrypted with another key")

// Salt says which key encrypts a slot.
type Salt [SaltSize]byte

// Seal is what it takes besides the master key and the place to decrypt a slot. The zero value is that of a plain one.
type Seal struct {
	Salt Salt
	Tag  [TagSize]byte
}

// Plain says whether the slot is not encrypted.
func (s Seal) Plain() bool { return s == Seal{} }

// spares is how many bytes of buffers are kept for reuse.
const spares = 16 << 20

// Contexts of the keys that are derived from the master key.
const (
	forIDs     = "gpucr-fs 2026 ids of chunks"
	forSlots   = "gpucr-fs 2026 keys of packs"
	forRecords = "gpucr-fs 2026 keys of records and files"
)

// Coder encrypts and decrypts with one master key. It is safe for concurrent use.
type Coder struct {
	ids, slots, records []byte    // in locked memory
	hashers             sync.Pool // of ids
	deriving            sync.Pool // *derivers
	buffers             *arena.Arena
	Hooks               Hooks
}

// Hooks are for tests.
type Hooks struct {
	Salt func() Salt // in place of random ones
	// Used is told of each plaintext that is encrypted: of what salt the key is, and the nonce.
	Used func(salt Salt, nonce uint64, plain []byte)
}

// New gives a coder with a master key, which is the caller's to wipe. The process is undumpable from then on.
func New(master []byte) (*Coder, error) {
	if len(master) != KeySize {
		return nil, fmt.Errorf("a master key of %d bytes, not %d", len(master), KeySize)
	}
	mem, err := lockedMemory()
	if err != nil {
		return nil, fmt.Errorf("memory for the store's key: %w", err)
	}
	c := &Coder{ids: mem[:32], slots: mem[32:64], records: mem[64:96], buffers: arena.New(spares)}
	blake3.DeriveKey(forIDs, master, c.ids)
	blake3.DeriveKey(forSlots, master, c.slots)
	blake3.DeriveKey(forRecords, master, c.records)
	return c, nil
}

// Wipe forgets the keys. Nothing may be asked of the coder any more.
func (c *Coder) Wipe() {
	if c == nil {
		return
	}
	clear(c.ids)
	clear(c.slots)
	clear(c.records)
}

func keyed(key []byte) *blake3.Hasher {
	h, err := blake3.NewKeyed(key)
	if err != nil {
		panic(err) // keys have 32 bytes
	}
	return h
}

// Sum gives the id of a chunk: BLAKE3 of its content, keyed where the store is encrypted.
func (c *Coder) Sum(content []byte) (id chunk.ID) {
	if c == nil {
		return chunk.Sum(content)
	}
	h, _ := c.hashers.Get().(*blake3.Hasher)
	if h == nil {
		h = keyed(c.ids)
	}
	h.Reset()
	h.Write(content)
	h.Sum(id[:0])
	c.hashers.Put(h)
	return id
}

// NewSalt draws a salt: a pack, a record or a file is begun.
func (c *Coder) NewSalt() (s Salt) {
	if c.Hooks.Salt != nil {
		return c.Hooks.Salt()
	}
	rand.Read(s[:])
	return s
}

// derivers derive keys. They take 20 KiB to make.
type derivers struct{ slots, records *blake3.Hasher }

// purpose says of which key another one is derived.
type purpose bool

const (
	ofSlots   purpose = true
	ofRecords purpose = false
)

// key gives what encrypts under a salt.
func (c *Coder) key(of purpose, context string, salt Salt) aead.AEAD {
	d, _ := c.deriving.Get().(*derivers)
	if d == nil {
		d = &derivers{slots: keyed(c.slots), records: keyed(c.records)}
	}
	h := d.records
	if of == ofSlots {
		h = d.slots
	}
	h.Reset()
	h.Write(salt[:])
	h.WriteString(context)
	var k [KeySize]byte
	h.Sum(k[:0])
	c.deriving.Put(d)
	b, err := aes.NewCipher(k[:])
	clear(k[:])
	if err != nil {
		panic(err) // keys have 32 bytes
	}
	g, err := aead.NewGCM(b)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return g
}

// nonce gives the nonce of a number: 96 bits.
func nonce(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 4, 12), n) }

// openInto opens what an AEAD has sealed, into dst, which is as long or longer and may be where sealed is.
func openInto(dst []byte, k aead.AEAD, nonce, sealed []byte) ([]byte, error) {
	if len(sealed) < TagSize {
		return nil, ErrOpen
	}
	plain, err := k.Open(dst[:0:len(sealed)-TagSize], nonce, sealed, nil)
	if err != nil {
		return nil, ErrOpen
	}
	return plain, nil
}

func (c *Coder) used(salt Salt, n uint64, plain []byte) {
	if c.Hooks.Used != nil {
		c.Hooks.Used(salt, n, plain)
	}
}

// Buffer gives a page-aligned buffer with room for n bytes. Done takes it back.
func (c *Coder) Buffer(n int) []byte {
	b, err := c.buffers.Get(n)
	if err != nil {
		return make([]byte, 0, n|1) // Done knows it by its odd size
	}
	return b
}

// Done takes a buffer back.
func (c *Coder) Done(b []byte) {
	if arena.Size(cap(b)) == cap(b) {
		c.buffers.Put(b)
	}
}

// EncryptSlot encrypts the stored bytes of a chunk into buf, a Buffer of that length and TagSize: for the slot that
// begins at page of a pack that has this salt. No page of a pack may come twice with one salt.
func (c *Coder) EncryptSlot(buf []byte, salt Salt, page uint32, stored []byte) ([]byte, Seal) {
	c.used(salt, uint64(page), stored)
	sealed := c.key(ofSlots, "", salt).Seal(buf[:0], nonce(uint64(page)), stored, nil)
	n := len(stored)
	return sealed[:n], Seal{Salt: salt, Tag: [TagSize]byte(sealed[n:])}
}

// DecryptSlot decrypts the stored bytes of a slot in their place. The TagSize bytes behind them are the caller's too,
// as far as the capacity reaches: the tag, which is in the journal, lies there meanwhile, and they are as they were
// afterwards. Without that room the bytes are copied.
func (c *Coder) DecryptSlot(stored []byte, s Seal, page uint32) error {
	if c == nil {
		return fmt.Errorf("%w: there is no key", ErrOpen)
	}
	k, n := c.key(ofSlots, "", s.Salt), len(stored)
	if n+TagSize > cap(stored) {
		sealed := c.Buffer(n + TagSize)
		defer func() { c.Done(sealed) }()
		sealed = append(append(sealed[:0], stored...), s.Tag[:]...)
		_, err := openInto(stored, k, nonce(uint64(page)), sealed)
		return err
	}
	sealed := stored[:n+TagSize]
	behind := [TagSize]byte(sealed[n:])
	copy(sealed[n:], s.Tag[:])
	_, err := openInto(stored, k, nonce(uint64(page)), sealed)
	copy(sealed[n:], behind[:])
	return err
}

// Seal encrypts a record for a purpose, which has to be told to open it.
func (c *Coder) Seal(purpose string, plain []byte) []byte {
	salt := c.NewSalt()
	c.used(salt, 0, plain)
	out := append(make([]byte, 0, len(plain)+Overhead), salt[:]...)
	return c.key(ofRecords, purpose, salt).Seal(out, nonce(0), plain, nil)
}

// Open gives what Seal was given. ErrOpen.
func (c *Coder) Open(purpose string, sealed []byte) ([]byte, error) {
	if c == nil || len(sealed) < Overhead {
		return nil, ErrOpen
	}
	k := c.key(ofRecords, purpose, Salt(sealed[:SaltSize]))
	return openInto(make([]byte, len(sealed)-Overhead), k, nonce(0), sealed[SaltSize:])
}
