// Package remote is a store that many machines share: checkpoints in a bucket. Each machine has a store of its own,
// into which checkpoints are written, and takes them to the bucket once they are sealed (Push). Each can take over
// what another has pushed (Pull): a root and a list are read then, payload when it is needed (ReadRange).
//
// # In the bucket
//
//	config           format and identity, made once
//	roots/ packs/ …  package catalog: which checkpoints stand, and the packs they need
//
// A checkpoint's packs are those that were made of it (package upload), those of others that it refers to, and last its
// list (package object). What the root says besides (Meta) is enough to show it in a list.
//
// # What a push does
//
// It takes the name, claims the packs of the bucket in which it knows chunks of the checkpoint, uploads what is left,
// and seals. While it uploads it touches its draft, so that no collector takes it for abandoned. When anything fails
// the name is given free; what was uploaded is collected.
package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// Format is the version of the remote store's format that this program writes and reads.
const Format = 1

const (
	configKey = "config"
	maxConfig = 64 << 10
)

// Config is what the object config holds.
type Config struct {
	Format            int          `json:"format"`
	ID                string       `json:"id"` // random identity of the remote store, hex
	Created           time.Time    `json:"created"`
	Chunk             chunk.Params `json:"chunk"`              // where files are cut: the same everywhere
	ConditionalDelete bool         `json:"conditional_delete"` // what bucket.Probe found
}

// Options of an open remote store. The zero Options have defaults.
type Options struct {
	// Timeout is how long a reader of payload waits for a bucket that does not answer; a minute by default.
	Timeout time.Duration
	// Catalog is how requests of the catalog are made.
	Catalog catalog.Options
	// Pushes remembers pushes across crashes; by default nobody does, and the name of one that was killed is taken
	// until a collector gives it free.
	Pushes Pushes
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
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
	// Begun notes the nonce of a push's draft.
	Begun(name, nonce string) error
	// Left gives the nonce of the last push of a name that was begun and not ended, "" for none.
	Left(name string) string
	// Ended forgets the push of a name.
	Ended(name string)
}

type noPushes struct{}

func (noPushes) Begun(string, string) error { return nil }
func (noPushes) Left(string) string         { return "" }
func (noPushes) Ended(string)               {}

// Store is an open remote store. It is safe for concurrent use.
type Store struct {
	b      bucket.Bucket
	c      *catalog.Catalog
	config Config
	id     [16]byte
	o      Options

	pushMu sync.Mutex // one push at a time: what is left of an earlier one is nobody's
}

// Make makes a remote store in a bucket, or opens the one that is there; fresh says which. It first finds out whether
// the bucket can hold one: Class Unsupported where its conditional writes do not hold.
func Make(ctx context.Context, b bucket.Bucket, params chunk.Params, o Options) (s *Store, fresh bool, err error) {
	const op = "make remote store"
	if s, err := Open(ctx, b, o); fault.ClassOf(err) != fault.NoStore {
		return s, false, err
	}
	found, err := bucket.Probe(ctx, b)
	if err != nil {
		return nil, false, Classify(op, err)
	}
	var id [16]byte
	rand.Read(id[:])
	c := Config{Format: Format, ID: hex.EncodeToString(id[:]), Created: time.Now().UTC().Truncate(time.Second),
		Chunk: params, ConditionalDelete: found.ConditionalDelete}
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return nil, false, err
	}
	_, err = b.Put(ctx, configKey, bytes.NewReader(text), int64(len(text)), bucket.IfAbsent)
	if err != nil && bucket.ClassOf(err) != bucket.Precondition {
		return nil, false, Classify(op, err)
	}
	s, err = Open(ctx, b, o) // what another machine has made meanwhile counts
	return s, err == nil && s.id == id, err
}

// Open opens the remote store in a bucket. Class NoStore where there is none.
func Open(ctx context.Context, b bucket.Bucket, o Options) (*Store, error) {
	const op = "open remote store"
	text, _, err := bucket.ReadAll(ctx, bucket.Retry(b, 5, bucket.Backoff), configKey, maxConfig)
	if bucket.ClassOf(err) == bucket.NotFound {
		return nil, &fault.Error{Class: fault.NoStore, Op: op, Err: errors.New("the bucket holds no remote store"),
			Hint: "make one with: gpucr-fs init --remote ADDRESS STORE"}
	}
	if err != nil {
		return nil, Classify(op, err)
	}
	c, id, err := parseConfig(text)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	o.Catalog.ConditionalDelete = c.ConditionalDelete
	return &Store{b: b, c: catalog.New(b, o.Catalog), config: c, id: id, o: o}, nil
}

func parseConfig(text []byte) (c Config, id [16]byte, err error) {
	const op = "open remote store"
	bad := func(why error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, File: configKey, Err: why,
			Hint: "restore the object config from a backup; remote.json of each node's store has a copy"}
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, id, bad(err)
	}
	if c.Format > Format {
		return c, id, &fault.Error{Class: fault.Unsupported, Op: op, File: configKey,
			Err: fmt.Errorf("format %d is not known to this version", c.Format), Hint: "use a later gpucr-fs"}
	}
	b, err := hex.DecodeString(c.ID)
	if err != nil || len(b) != len(id) || c.Format < 1 {
		return c, id, bad(fmt.Errorf("format %d, id %.40q", c.Format, c.ID))
	}
	if err := c.Chunk.Validate(); err != nil {
		return c, id, bad(err)
	}
	copy(id[:], b)
	return c, id, nil
}

// Config gives the parameters of the remote store.
func (s *Store) Config() Config { return s.config }

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
	case errors.Is(err, catalog.ErrRemoved):
		class = fault.NotFound
	case errors.Is(err, catalog.ErrCorrupt):
		class = fault.Corrupt
	case errors.Is(err, catalog.ErrVersion):
		class, hint = fault.Unsupported, "use a later gpucr-fs"
	}
	return &fault.Error{Class: class, Op: op, Hint: hint, Err: err}
}

// named gives an error of the remote store the name of the checkpoint concerned.
func named(op, name string, err error) error {
	err = Classify(op, err)
	return &fault.Error{Class: fault.ClassOf(err), Op: op, Checkpoint: name, Hint: fault.HintOf(err), Err: err}
}

// ReadRange fills p with what lies at off in a pack object. A bucket that does not answer is asked again for
// Options.Timeout. Class NotFound when the pack is gone: the checkpoint was removed.
func (s *Store) ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	for n := 1; ; n++ {
		err := s.readOnce(ctx, name, p, off)
		if class := bucket.ClassOf(err); err == nil || class != bucket.Transient && class != bucket.Corrupt {
			return Classify("fetch", err)
		}
		s.o.Logger.Warn("a range of the bucket could not be read, and is asked for again", "pack", name.String(),
			"offset", off, "bytes", len(p), "err", err)
		if bucket.Backoff(ctx, n) != nil {
			return Classify("fetch", err)
		}
	}
}

func (s *Store) readOnce(ctx context.Context, name object.Name, p []byte, off int64) error {
	n, info, err := s.b.Get(ctx, catalog.PackKey(name.String()), p, off)
	if err == nil && n < len(p) {
		return fmt.Errorf("pack object %s has %d bytes: %w", name, info.Size, object.ErrCorrupt)
	}
	return err
}
