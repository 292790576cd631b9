package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/config"
)

// ringAttempts is how often a change of the keys is tried where other machines change them at the same time, or no
// answer comes.
const ringAttempts = 30

// ChangeRing makes in the remote store in a bucket the change of keys that a machine has made in its own ring, which
// was as before and is as after. What others have changed there stays: the change is made in the keys that are there,
// and once more where another machine was quicker. Class Invalid where it cannot be made there, or the bucket's keys
// are of another master key.
func ChangeRing(ctx context.Context, b bucket.Bucket, before, after *keyring.Ring) error {
	const op = "write keys"
	invalid := func(err error, hint string) error {
		return &fault.Error{Class: fault.Invalid, Op: op, File: config.Key, Err: err, Hint: hint}
	}
	change := after.Since(before)
	for n := 1; ; n++ {
		text, info, err := bucket.ReadAll(ctx, bucket.Retry(b, 5, bucket.Backoff), config.Key, config.Max)
		if err != nil {
			return Classify(op, err)
		}
		c, _, err := config.Parse(text)
		if err != nil {
			return err
		}
		if c.Ring == nil || !c.Ring.Same(after) {
			return invalid(errors.New("the remote store has another key"), "")
		}
		news, err := change.In(c.Ring)
		if err != nil {
			return invalid(err, "add the keys that are needed with: gpucr-fs key add")
		}
		if !news { // an earlier attempt had no answer, or another machine has done the same
			return nil
		}
		c.Revision = rand.Text()
		if text, err = c.Encode(); err != nil {
			return err
		}
		_, err = b.Put(ctx, config.Key, bytes.NewReader(text), int64(len(text)), bucket.IfMatch(info.ETag))
		class := bucket.ClassOf(err)
		again := class == bucket.Precondition || class == bucket.Transient
		switch {
		case err == nil:
			return nil
		case again && n < ringAttempts:
			if err := bucket.Backoff(ctx, n); err != nil {
				return Classify(op, err)
			}
		case class == bucket.Precondition:
			return &fault.Error{Class: fault.InUse, Op: op, File: config.Key,
				Err: errors.New("other machines change them all the time"), Hint: "try again"}
		default:
			return Classify(op, err)
		}
	}
}
