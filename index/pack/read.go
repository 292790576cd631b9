package pack

import (
	"bytes"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
)

// Room is the capacity, in bytes, that a buffer of ReadSlots should have behind the slot: a tag lies there while an
// encrypted slot is decrypted. Less costs a copy.
const Room = cipher.TagSize

// ReadSlots reads slots that lie one behind the other in one pack, with one system call. Each buffer needs a capacity
// of its slot's length and is filled with it; errs tells for each what is wrong with it. A slot is right when its guard
// is, an encrypted one when its tag is. What a buffer's capacity has behind the slot, up to Room, is the caller's too,
// and is as it was afterwards.
// past reads around the page cache: for those who keep what they read, as the mount does in the kernel's cache of
// its own files, a second copy costs memory and, measured on two cores, a third of the processor time of a cold read.
func (s *Set) ReadSlots(locs []Loc, bufs [][]byte, past bool) (errs []error) {
	errs = make([]error, len(locs))
	if len(locs) == 0 {
		return errs
	}
	s.mu.Lock()
	f, err := s.open(locs[0].Pack)
	s.mu.Unlock()
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	iov := make([][]byte, len(locs))
	for i, l := range locs {
		bufs[i] = bufs[i][:l.Slot()]
		iov[i] = bufs[i]
	}
	if err := f.f.Readv(iov, locs[0].Offset(), past); err != nil && len(locs) > 1 {
		// One of them cannot be read: the others shall not suffer.
		for i := range locs {
			errs[i] = s.ReadSlots(locs[i:i+1], bufs[i:i+1], past)[0]
		}
		return errs
	} else if err != nil {
		errs[0] = fmt.Errorf("pack %s at %d: %w: %w", Name(locs[0].Pack), locs[0].Offset(), ErrCorrupt, err)
		return errs
	}
	for i, l := range locs {
		if err := s.right(l, bufs[i]); err != nil {
			errs[i] = fmt.Errorf("pack %s at %d: %w", Name(l.Pack), l.Offset(), err)
		}
	}
	return errs
}

// right tells whether a slot is what was written, and decrypts it. What the tag of an encrypted slot says of its bytes
// is more than what the guard says, and takes a pass over them as well; behind them are zeros.
func (s *Set) right(l Loc, slot []byte) error {
	if s.o.Coder == nil || l.Stored == 0 {
		if crc32c.Checksum(slot) != l.CRC || l.Stored == 0 {
			return fmt.Errorf("%w: wrong checksum", ErrCorrupt)
		}
		return nil
	}
	if padding := slot[l.Stored:]; !bytes.Equal(padding, zeros[:len(padding)]) {
		return fmt.Errorf("%w: something behind the chunk", ErrCorrupt)
	}
	return Decrypt(s.o.Coder, l, slot)
}

// Decrypt decrypts a slot in its place. It wraps ErrCorrupt.
func Decrypt(c *cipher.Coder, l Loc, slot []byte) error {
	if err := c.DecryptSlot(slot[:l.Stored], l.Seal, l.Page); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// WillNeed lets the kernel begin to read a range of pack n into the page cache. It is advice: what goes wrong shows
// when the range is read.
func (s *Set) WillNeed(n uint32, off, length int64) {
	s.mu.Lock()
	f, err := s.open(n)
	s.mu.Unlock()
	if err == nil {
		f.f.WillNeed(off, length)
	}
}
