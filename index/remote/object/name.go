package object

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// NameSize is the length of a Name in bytes.
const NameSize = 20

// Name is the name of a pack object: 128 bits that the writer of a checkpoint chose at random, and a number that it
// counted up, big-endian. No two are alike, so nobody ever writes over an object that another has written.
type Name [NameSize]byte

// String gives 32 hex digits, a dash and the number.
func (n Name) String() string {
	return hex.EncodeToString(n[:16]) + "-" + strconv.FormatUint(uint64(binary.BigEndian.Uint32(n[16:])), 10)
}

// ParseName reads what String gives, and nothing else.
func ParseName(s string) (Name, error) {
	var n Name
	digits, number, _ := strings.Cut(s, "-")
	b, err := hex.DecodeString(digits)
	k, numErr := strconv.ParseUint(number, 10, 32)
	copy(n[:], b)
	binary.BigEndian.PutUint32(n[16:], uint32(k))
	if err != nil || numErr != nil || len(b) != 16 || n.String() != s {
		return Name{}, fmt.Errorf("%.60q is not the name of a pack object", s)
	}
	return n, nil
}
