// Package keyring keeps the master key of an encrypted store: wrapped, once for each of those who may open it.
//
// A ring is JSON that holds no secret. Each of its keys is the same master key, encrypted in a way of its own: to an
// age recipient, with a passphrase (age's scrypt), or by a command that its owner names when he opens the store, as one
// that asks a key service. Adding, removing and rotating change the ring alone. A check, a record sealed with the
// master key, tells a wrong key from damage.
package keyring

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/index/cipher"
)

const (
	// FileName is the file of a store that holds its ring.
	FileName = "keyring"
	// MaxSize bounds a ring in bytes.
	MaxSize = 1 << 20
	format  = 1
	maxKeys = 64
	// checkText is what the check says.
	checkText = "gpucr-fs"
)

// Kinds of wrapping.
const (
	Recipient  = "recipient"
	Passphrase = "passphrase"
	Command    = "command"
)

// Key is the master key, wrapped.
type Key struct {
	ID        string    `json:"id"` // eight hex digits
	Kind      string    `json:"kind"`
	Recipient string    `json:"recipient,omitempty"` // age1…
	Created   time.Time `json:"created"`
	Wrapped   []byte    `json:"wrapped"`
}

// Ring is the keys of a store.
type Ring struct {
	Format int    `json:"format"`
	Check  []byte `json:"check"`
	Keys   []Key  `json:"keys"`
}

// Errors that callers tell apart.
var (
	// ErrNoKey: nobody said how to open it.
	ErrNoKey = errors.New("it is encrypted, and no key was given")
	// ErrWrongKey: what was given opens none of the keys.
	ErrWrongKey = errors.New("it is encrypted, and what was given does not open it")
	// ErrDamaged: the ring is not what was written.
	ErrDamaged = errors.New("its keys are damaged")
	// ErrVersion: a later version of the program wrote it.
	ErrVersion = errors.New("its keys were written by a later version")
)

// Hint says how to give a key.
const Hint = "set GPUCR_FS_IDENTITY, GPUCR_FS_PASSPHRASE_FILE or GPUCR_FS_KEY_COMMAND, or use --identity, " +
	"--passphrase-file or --key-command"

// Make draws a master key and gives the ring that wraps it for those whom w names.
func Make(ctx context.Context, w Wrap) (*Ring, error) {
	master := make([]byte, cipher.KeySize)
	rand.Read(master)
	defer clear(master)
	c, err := cipher.New(master)
	if err != nil {
		return nil, err
	}
	defer c.Wipe()
	r := &Ring{Format: format, Check: c.Seal(cipher.ForCheck, []byte(checkText))}
	return r, r.add(ctx, master, w)
}

// Parse reads a ring. ErrDamaged, ErrVersion.
func Parse(b []byte) (*Ring, error) {
	var r Ring
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	switch {
	case r.Format > format:
		return nil, ErrVersion
	case r.Format < 1 || len(r.Keys) == 0 || len(r.Keys) > maxKeys:
		return nil, fmt.Errorf("%w: format %d, %d keys", ErrDamaged, r.Format, len(r.Keys))
	}
	return &r, nil
}

// Encode gives the ring for a file.
func (r *Ring) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "\t")
	return append(b, '\n'), err
}

// Open gives the coder of the store. ErrNoKey, ErrWrongKey.
func (r *Ring) Open(ctx context.Context, a Access) (*cipher.Coder, error) {
	master, err := r.master(ctx, a)
	if err != nil {
		return nil, err
	}
	defer clear(master)
	return cipher.New(master)
}

// master unwraps the master key.
func (r *Ring) master(ctx context.Context, a Access) ([]byte, error) {
	if a == (Access{}) {
		return nil, ErrNoKey
	}
	var why []error
	for _, k := range r.Keys {
		master, err := a.unwrap(ctx, k)
		if errors.Is(err, errNotFor) {
			continue
		}
		if err == nil && r.fits(master) {
			return master, nil
		}
		if err == nil {
			err = errors.New("it unwraps to another key")
		}
		why = append(why, fmt.Errorf("key %s: %w", k.ID, err))
	}
	if len(why) == 0 {
		return nil, fmt.Errorf("%w: none of its %d keys is of that kind", ErrWrongKey, len(r.Keys))
	}
	return nil, fmt.Errorf("%w: %w", ErrWrongKey, errors.Join(why...))
}

func (r *Ring) fits(master []byte) bool {
	c, err := cipher.New(master)
	if err != nil {
		return false
	}
	defer c.Wipe()
	text, err := c.Open(cipher.ForCheck, r.Check)
	return err == nil && subtle.ConstantTimeCompare(text, []byte(checkText)) == 1
}

// Add wraps the master key once more.
func (r *Ring) Add(ctx context.Context, a Access, w Wrap) error {
	master, err := r.master(ctx, a)
	if err != nil {
		return err
	}
	defer clear(master)
	return r.add(ctx, master, w)
}

func (r *Ring) add(ctx context.Context, master []byte, w Wrap) error {
	made, err := w.wrap(ctx, master)
	if err != nil {
		return err
	}
	for _, k := range made {
		var id [4]byte
		rand.Read(id[:])
		k.ID, k.Created = hex.EncodeToString(id[:]), time.Now().UTC().Truncate(time.Second)
		r.Keys = append(r.Keys, k)
	}
	if len(r.Keys) > maxKeys {
		return fmt.Errorf("a store has at most %d keys", maxKeys)
	}
	return nil
}

// Remove takes a key away, but not the last one.
func (r *Ring) Remove(id string) error {
	i := slices.IndexFunc(r.Keys, func(k Key) bool { return k.ID == id })
	switch {
	case i < 0:
		return fmt.Errorf("there is no key %q", id)
	case len(r.Keys) == 1:
		return errors.New("it is the last key: without it nobody can open the store")
	}
	r.Keys = slices.Delete(r.Keys, i, i+1)
	return nil
}

// Rotate wraps the master key anew for those whom w names, and takes all other keys away.
func (r *Ring) Rotate(ctx context.Context, a Access, w Wrap) error {
	master, err := r.master(ctx, a)
	if err != nil {
		return err
	}
	defer clear(master)
	old := r.Keys
	r.Keys = nil
	if err := r.add(ctx, master, w); err != nil {
		r.Keys = old
		return err
	}
	return nil
}

// Same says whether two rings are of one master key: a store and its remote store.
func (r *Ring) Same(o *Ring) bool { return bytes.Equal(r.Check, o.Check) }
