// Package remote is a store that many machines share: checkpoints in a bucket. Each machine has a store of its own,
// into which checkpoints are written, and takes them to the bucket once they are sealed (Push). Each can take over
// what another has pushed (Pull): a root and a list are read then, payload when it is needed (ReadRange).
//
// # In the bucket
//
//	config           format and identity, made once (package config)
//	profiles/ID      what a restore has learned of a checkpoint that was in the bucket already (profile.go)
//	roots/ packs/ …  package catalog: which checkpoints stand, and the packs they need
//
// A checkpoint's packs are those that were made of it (package upload), those of others that it refers to, and last its
// list (package object). What the root says besides (Meta) is enough to show it in a list.
//
// Of a hot set that was packed later the root is beside that of its checkpoint (hot.go).
//
// # What a push does
//
// It takes the name, claims the packs of the bucket in which it knows chunks of the checkpoint, uploads what is left,
// and seals. PushEarly takes the name and uploads while the checkpoint is still being written (early.go). Meanwhile the
// draft is touched, so that no collector takes it for abandoned. When anything fails the name is given free; what was
// uploaded is collected.
package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/config"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/ranges"
)

// Options of an open remote store. The zero Options have defaults.
type Options struct {
	// Ahead is the same bucket by connections of its own, for what is read before anybody waits for it: readers who
	// wait have the other ones. Default: the bucket itself.
	Ahead bucket.Bucket
	// Timeout is how long a reader of payload waits for a bucket that does not answer; a minute by default.
	Timeout time.Duration
	// Catalog is how requests of the catalog are made.
	Catalog catalog.Options
	// Pushes remembers pushes across crashes; by default nobody does, and the name of one that was killed is taken
	// until a collector gives it free.
	Pushes Pushes
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
	// Ring is for Make: the wrapped key of a new remote store; nil: it is plain.
	Ring *keyring.Ring
	// Cipher encrypts and decrypts what an encrypted remote store holds.
	Cipher *cipher.Coder
}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Pushes == nil {
		o.Pushes = noPushes{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Pushes remembers, durably, which pushes this machine has begun and not ended.
type Pushes interface {
	// Begun notes the nonce of a push's draft, before the bucket is asked for its name.
	Begun(name, nonce string) error
	// Left gives the nonce of the last push of a name that was begun and not ended, "" for none.
	Left(name string) (nonce string, err error)
	// Ended forgets the push of a name.
	Ended(name string)
}

type noPushes struct{}

func (noPushes) Begun(string, string) error  { return nil }
func (noPushes) Left(string) (string, error) { return "", nil }
func (noPushes) Ended(string)                {}

// Store is an open remote store. It is safe for concurrent use.
type Store struct {
	b      bucket.Bucket
	c      *catalog.Catalog
	config config.Config
	id     [16]byte
	o      Options

	waited, ahead ranges.Lane // of payload
	window        *ranges.Window

	earlyMu sync.Mutex
	earlies map[string]*early // by the ids of the checkpoints
	pushed  string            // the name that Push has taken, "" for none

	earlyTurn chan struct{}

	// Held while a name is taken in the bucket: what another call here has just begun looks like what a crash has left.
	naming chan struct{}

	pushing chan struct{} // one push at a time: what is left of an earlier one is nobody's

	learning sync.Mutex        // one Learn at a time
	learned  map[string]string // ETags of the roots that it has seen, by key

	following sync.Mutex        // one Follow at a time
	followed  map[string]string // likewise
}

// Make makes a remote store in a bucket, or opens the one that is there; fresh says which. It first finds out whether
// the bucket can hold one: Class Unsupported where its conditional writes do not hold. Class Corrupt where there are
// roots or packs, and config is lost.
func Make(ctx context.Context, b bucket.Bucket, params chunk.Params, o Options) (s *Store, fresh bool, err error) {
	const op = "make remote store"
	if s, err := Open(ctx, b, o); fault.ClassOf(err) != fault.NoStore {
		return s, false, err
	}
	used, err := catalog.Used(ctx, b)
	if err != nil {
		return nil, false, Classify(op, err)
	}
	if used { // by another machine, which has just made it; or config was lost, and another identity is no help
		if s, err = Open(ctx, b, o); fault.ClassOf(err) == fault.NoStore {
			err = &fault.Error{Class: fault.Corrupt, Op: op, File: config.Key, Hint: config.PutBack,
				Err: errors.New("it is lost, but the bucket holds checkpoints or packs")}
		}
		return s, false, err
	}
	found, err := bucket.Probe(ctx, b)
	if err != nil {
		return nil, false, Classify(op, err)
	}
	var id [16]byte
	rand.Read(id[:])
	c := config.Config{Format: config.Plain, Ring: o.Ring, ID: hex.EncodeToString(id[:]),
		Created: time.Now().UTC().Truncate(time.Second),
		Chunk:   params, ConditionalDelete: found.ConditionalDelete}
	if c.Ring != nil {
		c.Format = config.Encrypted
	}
	text, err := c.Encode()
	if err != nil {
		return nil, false, err
	}
	_, err = b.Put(ctx, config.Key, bytes.NewReader(text), int64(len(text)), bucket.IfAbsent)
	if err != nil && bucket.ClassOf(err) != bucket.Precondition {
		return nil, false, Classify(op, err)
	}
	s, err = Open(ctx, b, o) // what another machine has made meanwhile counts
	return s, err == nil && s.id == id, err
}

// Open opens the remote store in a bucket. Class NoStore where there is none.
func Open(ctx context.Context, b bucket.Bucket, o Options) (*Store, error) {
	const op = "open remote store"
	text, _, err := bucket.ReadAll(ctx, bucket.Retry(b, 5, bucket.Backoff), config.Key, config.Max)
	if bucket.ClassOf(err) == bucket.NotFound {
		return nil, &fault.Error{Class: fault.NoStore, Op: op, Err: errors.New("the bucket holds no remote store"),
			Hint: "make one with: gpucr-fs init --remote ADDRESS STORE"}
	}
	if err != nil {
		return nil, Classify(op, err)
	}
	c, id, err := config.Parse(text)
	if err != nil {
		return nil, err
	}
	if c.Ring == nil {
		o.Cipher = nil
	}
	o = o.withDefaults()
	o.Catalog.ConditionalDelete = c.ConditionalDelete
	if o.Ahead == nil {
		o.Ahead = b
	}
	return &Store{b: b, c: catalog.New(b, o.Catalog), config: c, id: id, o: o, window: ranges.NewWindow(),
		pushing: make(chan struct{}, 1), earlies: map[string]*early{},
		earlyTurn: make(chan struct{}, 1), naming: make(chan struct{}, 1)}, nil
}

// Config gives the parameters of the remote store.
func (s *Store) Config() config.Config { return s.config }

// classes are those of bucket errors.
var classes = map[bucket.Class]fault.Class{
	bucket.NotFound: fault.NotFound, bucket.Transient: fault.Unreachable, bucket.Denied: fault.Unreachable,
	bucket.NoBucket: fault.Unreachable, bucket.Corrupt: fault.Corrupt, bucket.Invalid: fault.Invalid,
	bucket.Unsupported: fault.Unsupported,
}

// Classify turns an error of the bucket or its catalog into one of the store's.
func Classify(op string, err error) error {
	if err == nil || fault.ClassOf(err) != fault.Other {
		return err
	}
	class, hint := classes[bucket.ClassOf(err)], bucket.HintOf(err)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		class = fault.NotFound
	case errors.Is(err, catalog.ErrExists):
		class, hint = fault.Exists, "choose another name, or remove the one in the bucket"
	case errors.Is(err, catalog.ErrInUse):
		class, hint = fault.InUse, "another machine pushes a checkpoint of that name; try again when it is done"
	case errors.Is(err, catalog.ErrTaken):
		class, hint = fault.InUse, "try again"
	case errors.Is(err, catalog.ErrMoved):
		class, hint = fault.InUse, "try again"
	case errors.Is(err, catalog.ErrRemoved):
		class = fault.NotFound
	case errors.Is(err, catalog.ErrCorrupt):
		class = fault.Corrupt
	case errors.Is(err, catalog.ErrVersion):
		class, hint = fault.Unsupported, "use a later gpucr-fs"
	}
	return &fault.Error{Class: class, Op: op, Hint: hint, Err: err}
}

// Needed gives the packs that checkpoints of the bucket need, those that are being pushed included.
func (s *Store) Needed(ctx context.Context) (map[object.Name]bool, error) {
	needed := map[object.Name]bool{}
	for r, err := range s.c.All(ctx) {
		if err != nil {
			return nil, Classify("look what the remote store needs", err)
		}
		for _, p := range r.Packs {
			if name, err := object.ParseName(p.ID); err == nil {
				needed[name] = true
			}
		}
	}
	return needed, nil
}

// Contents is what a bucket holds for a remote store.
type Contents = catalog.Contents

// Contents lists the bucket, a thousand objects a request.
func (s *Store) Contents(ctx context.Context) (Contents, error) {
	c, err := s.c.Contents(ctx)
	return c, Classify("account for the remote store", err)
}

// named gives an error of the remote store the name of the checkpoint concerned.
func named(op, name string, err error) error {
	return fault.At(op, name, "", Classify(op, err))
}
