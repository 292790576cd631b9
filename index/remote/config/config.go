// Package config is the object config of a bucket: the format and the identity of the remote store in it. It is made
// once, and changed where keys are added or removed.
package config

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
)

// Versions of the format of a remote store that this program writes and reads.
const (
	Plain     = 1
	Encrypted = 2
)

const (
	// Key is the object's.
	Key = "config"
	// Max is how many bytes it has at most.
	Max = keyring.MaxSize
)

// PutBack is what to do when the object config is lost or damaged.
const PutBack = "put the object config back: any store that uses the bucket has it, as \"config\" in remote.json; " +
	"for an encrypted one add its keys (docs/buckets.md: If config is lost)"

// Config is what the object config holds.
type Config struct {
	Format            int          `json:"format"`
	ID                string       `json:"id"` // random identity of the remote store, hex
	Created           time.Time    `json:"created"`
	Chunk             chunk.Params `json:"chunk"`              // where files are cut: the same everywhere
	ConditionalDelete bool         `json:"conditional_delete"` // what bucket.Probe found
	// Ring is the wrapped key of an encrypted remote store. The stores of its nodes have the same key.
	Ring *keyring.Ring `json:"keyring,omitempty"`
	// Revision is random, of each change of the keys: no state of the object comes back.
	Revision string `json:"revision,omitempty"`
	// Sum of an encrypted one is the CRC-32C of the object, with zeros in place of the sum.
	Sum string `json:"crc32c,omitempty"`
}

// noSum stands in place of the sum where that is made.
const noSum = "00000000"

// Encode gives the object.
func (c Config) Encode() ([]byte, error) {
	c.Sum = ""
	if c.Ring != nil {
		c.Sum = noSum
	}
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil || c.Ring == nil {
		return text, err
	}
	return c.withSum(text, noSum, fmt.Sprintf("%08x", crc32c.Checksum(text))), nil
}

func (Config) withSum(text []byte, old, sum string) []byte {
	const field = `"crc32c": "`
	return bytes.Replace(text, []byte(field+old), []byte(field+sum), 1)
}

// Parse reads the object, and gives the identity in it as bytes. Class Corrupt, or Unsupported: of a later version.
func Parse(text []byte) (c Config, id [16]byte, err error) {
	const op = "open remote store"
	bad := func(why error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, File: Key, Err: why, Hint: PutBack}
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, id, bad(err)
	}
	if c.Format > Encrypted {
		return c, id, &fault.Error{Class: fault.Unsupported, Op: op, File: Key,
			Err: fmt.Errorf("format %d is not known to this version", c.Format), Hint: "use a later gpucr-fs"}
	}
	b, err := hex.DecodeString(c.ID)
	if err != nil || len(b) != len(id) || c.Format < 1 {
		return c, id, bad(fmt.Errorf("format %d, id %.40q", c.Format, c.ID))
	}
	if err := c.Chunk.Validate(); err != nil {
		return c, id, bad(err)
	}
	if sum := fmt.Sprintf("%08x", crc32c.Checksum(c.withSum(text, c.Sum, noSum))); c.Ring != nil && c.Sum != sum {
		return c, id, bad(fmt.Errorf("wrong checksum: it says %.20q, its bytes have %s", c.Sum, sum))
	}
	if (c.Ring != nil) != (c.Format == Encrypted) {
		return c, id, bad(fmt.Errorf("format %d, and its keys are there: %t", c.Format, c.Ring != nil))
	}
	copy(id[:], b)
	return c, id, nil
}
