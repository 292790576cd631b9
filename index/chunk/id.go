package chunk

import (
	"encoding/hex"
	"fmt"

	"github.com/zeebo/blake3"
)

// IDSize is the length of an ID in bytes.
const IDSize = 32

// ID is the BLAKE3-256 of a chunk's content before compression.
type ID [IDSize]byte

// Sum gives the ID of content.
func Sum(content []byte) ID { return ID(blake3.Sum256(content)) }

// String gives the ID in hex, 64 digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero says whether id is the zero value, which is the ID of no content.
func (id ID) IsZero() bool { return id == ID{} }

// ParseID reads what String wrote.
func ParseID(s string) (ID, error) {
	var id ID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != IDSize {
		return id, fmt.Errorf("not a chunk id: %q", s)
	}
	copy(id[:], b)
	return id, nil
}
