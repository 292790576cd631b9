// Package profile keeps, in a bucket, the profiles of checkpoints: in which order a restore touched the pages.
//
// One that was learned after its checkpoint had been pushed lies in an object of its own, profiles/ID, by the
// checkpoint's id: a CRC-32C and the profile, or these sealed. The last one who learned one counts. It is a hint:
// nothing refers to it, and a restore without it does what a first one does.
package profile

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

const (
	dir = "profiles/"
	// most bounds the object of a profile, in bytes.
	most = pack.MaxValue + 4 + cipher.Overhead
)

func purpose(id string) string { return cipher.ForProfile + " " + id }

// Put keeps the profile of a checkpoint in place of an earlier one. c encrypts it; nil: it is not encrypted. The error
// is of the bucket.
func Put(ctx context.Context, b bucket.Bucket, c *cipher.Coder, id string, profile []byte) error {
	text := append(binary.LittleEndian.AppendUint32(nil, crc32c.Checksum(profile)), profile...)
	if c != nil {
		text = c.Seal(purpose(id), text)
	}
	_, err := b.Put(ctx, dir+id, bytes.NewReader(text), int64(len(text)), bucket.Cond{})
	return err
}

// Get gives what Put has kept, nil when there is none. The error is of the bucket, of c, or says that the profile is
// not as it was put.
func Get(ctx context.Context, b bucket.Bucket, c *cipher.Coder, id string) ([]byte, error) {
	text := make([]byte, 64<<10)
	n, info, err := b.Get(ctx, dir+id, text, 0)
	if bucket.ClassOf(err) == bucket.NotFound {
		return nil, nil
	}
	if err == nil && info.Size > most {
		err = fmt.Errorf("a profile of %d bytes", info.Size)
	}
	if err != nil {
		return nil, err
	}
	if text = text[:n]; int64(n) < info.Size {
		text = make([]byte, info.Size)
		if n, _, err = b.Get(ctx, dir+id, text, 0); err != nil {
			return nil, err
		}
		text = text[:n]
	}
	if c != nil {
		if text, err = c.Open(purpose(id), text); err != nil {
			return nil, err
		}
	}
	if len(text) < 4 || crc32c.Checksum(text[4:]) != binary.LittleEndian.Uint32(text) {
		return nil, fmt.Errorf("the profile of %s: wrong checksum", id)
	}
	return text[4:], nil
}

// All gives the ids of the checkpoints that have one. The error is of the bucket.
func All(ctx context.Context, b bucket.Bucket) (ids []string, err error) {
	for o, err := range bucket.All(ctx, b, dir) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, strings.TrimPrefix(o.Key, dir))
	}
	return ids, nil
}

// Delete deletes that of a checkpoint. The error is of the bucket.
func Delete(ctx context.Context, b bucket.Bucket, id string) error {
	return b.Delete(ctx, dir+id, bucket.Cond{})
}
