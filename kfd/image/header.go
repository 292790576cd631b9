package image

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderSize is the size in bytes of the payload size that every file of the
// plugin begins with.
const HeaderSize = 8

// ErrCorrupt marks every error about bytes that no version of the plugin could
// have written.
var ErrCorrupt = errors.New("corrupt amdgpu image")

// ErrUnsupported marks what is well-formed but of a version not known here.
var ErrUnsupported = errors.New("unsupported amdgpu image")

// AppendHeader appends the header of a file whose payload has n bytes.
func AppendHeader(b []byte, n uint64) []byte {
	return binary.NativeEndian.AppendUint64(b, n)
}

// Header returns the payload size that a file's first bytes announce.
func Header(b []byte) (uint64, error) {
	if len(b) < HeaderSize {
		return 0, fmt.Errorf("%d bytes are too few for a header: %w", len(b), ErrCorrupt)
	}
	return binary.NativeEndian.Uint64(b), nil
}

// payload returns the payload of a whole file.
func payload(file []byte) ([]byte, error) {
	n, err := Header(file)
	if err != nil {
		return nil, err
	}
	body := file[HeaderSize:]
	if n > uint64(len(body)) {
		return nil, fmt.Errorf("header announces %d bytes, the file has %d: %w", n, len(body), ErrCorrupt)
	}
	return body[:n], nil
}
