package abi

import (
	"encoding/binary"
	"fmt"
)

// Request is an ioctl request number: direction in bits 30–31, size of the
// argument in bits 16–29, type in bits 8–15, number in bits 0–7
// (include/uapi/asm-generic/ioctl.h).
type Request uint32

// Directions of a request, as seen by the caller.
const (
	dirWrite = 1 << 30 // the caller passes data to the driver
	dirRead  = 1 << 31 // the driver passes data to the caller
)

// Types of the two families of requests.
const (
	TypeKFD = 'K'
	TypeDRM = 'd'
)

// Nr returns the number of the request within its type.
func (r Request) Nr() uint8 { return uint8(r) }

// Type returns the request's family: [TypeKFD] or [TypeDRM] for those here.
func (r Request) Type() uint8 { return uint8(r >> 8) }

// Size returns the size in bytes of the argument the caller passes.
func (r Request) Size() int { return int(r >> 16 & 0x3fff) }

// Writes reports whether the driver reads the caller's argument.
func (r Request) Writes() bool { return r&dirWrite != 0 }

// Reads reports whether the driver fills in the caller's argument.
func (r Request) Reads() bool { return r&dirRead != 0 }

// Same reports whether both requests name the same operation, whatever the
// size and direction that the caller's headers gave it. This is how the KFD
// and the DRM core look a request up.
func (r Request) Same(o Request) bool { return r&0xffff == o&0xffff }

// WithSize returns the request with another argument size.
func (r Request) WithSize(n int) Request {
	return r&^(0x3fff<<16) | Request(n&0x3fff)<<16
}

// String returns the request's name, or its number when it has none here.
func (r Request) String() string {
	if name, ok := requestNames[r&0xffff]; ok {
		return name
	}
	return fmt.Sprintf("ioctl %#08x", uint32(r))
}

// Decode fills v, a pointer to one of this package's structures, from an ioctl
// argument of any length: missing bytes read as zero, excess bytes are
// ignored, as the drivers do for callers built against other headers.
func Decode(b []byte, v any) error {
	n := binary.Size(v)
	if n < 0 {
		return fmt.Errorf("decode %T: not a fixed-size structure", v)
	}
	if len(b) < n {
		b = append(make([]byte, 0, n), b...)[:n]
	}
	_, err := binary.Decode(b, binary.NativeEndian, v)
	return err
}

// Encode writes v, one of this package's structures or a pointer to one, into
// an ioctl argument of any length: what does not fit is dropped, bytes beyond
// the structure are left alone.
func Encode(b []byte, v any) error {
	full, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	copy(b, full)
	return nil
}
