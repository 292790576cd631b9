package object

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Name is the name of a pack object: 128 random bits. No two are alike, so nobody ever writes over an object that
// another has written.
type Name [16]byte

// NewName gives a fresh name.
func NewName() Name {
	var n Name
	rand.Read(n[:]) // never fails
	return n
}

// String gives 32 hex digits.
func (n Name) String() string { return hex.EncodeToString(n[:]) }

// ParseName reads what String gives.
func ParseName(s string) (Name, error) {
	var n Name
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(n) || hex.EncodeToString(b) != s {
		return n, fmt.Errorf("%.40q is not the name of a pack object", s)
	}
	copy(n[:], b)
	return n, nil
}
