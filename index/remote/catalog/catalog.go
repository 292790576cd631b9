package catalog

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

const (
	rootDir    = "roots/"
	packDir    = "packs/"
	tombDir    = "tombs/"
	removedDir = "removed/"
)

// beside begins the names of roots that are no checkpoints. No checkpoint's name begins so.
const beside = "~"

// Beside gives the name of the root of what belongs to the checkpoint with an id, and was written after that stood. For
// the catalog it is a root like any other.
func Beside(id string) string { return beside + id }

// IsBeside says whether a root's name is one that Beside gives.
func IsBeside(name string) bool { return strings.HasPrefix(name, beside) }

// AllBeside gives the ids of the checkpoints that have a root beside them, void ones included.
func (c *Catalog) AllBeside(ctx context.Context) (ids []string, err error) {
	for info, err := range bucket.All(ctx, c.b, rootDir+beside) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, strings.TrimPrefix(info.Key, rootDir+beside))
	}
	return ids, nil
}

// PackKey gives the key under which a pack lies in the bucket.
func PackKey(id string) string { return packDir + id }

// RootKey gives the key under which the root of a checkpoint lies in the bucket.
func RootKey(name string) string { return rootDir + name }

// Options are how a catalog does its requests. The zero Options have defaults.
type Options struct {
	// ConditionalDelete says that the server has conditional removals (bucket.Found).
	ConditionalDelete bool
	// Attempts is how often a request that fails with bucket.Transient is made in all; 5 by default.
	Attempts int
	// Wait is the pause between two attempts; bucket.Backoff by default.
	Wait bucket.Wait
	// Nonce gives 32 lower-case hex digits that nobody else has; random ones by default.
	Nonce func() string
}

func (o Options) withDefaults() Options {
	if o.Attempts <= 0 {
		o.Attempts = 5
	}
	if o.Wait == nil {
		o.Wait = bucket.Backoff
	}
	if o.Nonce == nil {
		o.Nonce = nonce
	}
	return o
}

func nonce() string {
	var b [nonceDigits / 2]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Catalog is the account of a bucket's checkpoints. Its methods may be called at once.
type Catalog struct {
	b    bucket.Bucket
	o    Options
	omit omitted
}

// omitted are steps that are left out, so that a test sees the simulation fail without them. Nothing else sets them.
type omitted struct {
	tombstones bool // claims do not look for tombstones
	order      bool // claims look for packs first, then for tombstones
	pending    bool // collectors take pending roots for nothing
	second     bool // collectors do not list the roots again after they wrote tombstones
	condition  bool // roots are sealed without a condition
	ownTombs   bool // runs share their tombstones
	revision   bool // attempts of one write share their revision

	// Of Exchange:
	check   bool // packs that the root has come to list are not looked for
	publish bool // packs are looked for before the root lists them
	rest    bool // packs that an earlier one has left in the root are taken for needed ones
	match   bool // roots are changed without a condition
	grace   bool // packs that are not needed any more are not kept for readers
	removal bool // a removal that meets one ends as if somebody else had removed the checkpoint
}

// New gives the catalog of a bucket.
func New(b bucket.Bucket, o Options) *Catalog {
	o = o.withDefaults()
	return &Catalog{b: bucket.Retry(b, o.Attempts, o.Wait), o: o}
}

// root is a record as it lies in the bucket.
type root struct {
	Record
	key, etag string
}

// read reads a record. Without one the error is of class bucket.NotFound. Of one that cannot be understood it gives the
// ETag beside the error.
func (c *Catalog) read(ctx context.Context, key string) (root, error) {
	b, info, err := bucket.ReadAll(ctx, c.b, key, maxRecord)
	if err != nil {
		return root{}, err
	}
	r, err := decode(b)
	if err == nil && key != rootDir+r.Name && (r.State != Removed || key != removedDir+r.Revision) {
		err = fmt.Errorf("%w: it is of another place", ErrCorrupt)
	}
	if err != nil {
		return root{key: key, etag: info.ETag}, fmt.Errorf("%s: %w", key, err)
	}
	return root{r, key, info.ETag}, nil
}

// write writes a root with a condition. Each attempt has a revision of its own: one that comes late must not bring a
// state back on which a later one was built. A write without an answer is looked for before it is made again, so that
// success and bucket.Precondition are certain. After any other error it may still happen.
func (c *Catalog) write(ctx context.Context, r Record, cond bucket.Cond) (root, error) {
	key := rootDir + r.Name
	tried := map[string]bool{}
	for n := 1; ; n++ {
		if n == 1 || !c.omit.revision {
			r.Revision = c.o.Nonce()
		}
		if err := r.check(); err != nil {
			return root{}, err
		}
		tried[r.Revision] = true
		b := r.encode()
		etag, err := c.b.Put(ctx, key, bytes.NewReader(b), int64(len(b)), cond)
		class := bucket.ClassOf(err)
		switch {
		case err == nil:
			return root{r, key, etag}, nil
		case class != bucket.Transient && class != bucket.Precondition, class == bucket.Precondition && n == 1:
			return root{}, err
		case class == bucket.Transient:
			if werr := c.o.Wait(ctx, n); werr != nil {
				return root{}, werr
			}
		}
		now, rerr := c.read(ctx, key)
		switch {
		case rerr == nil && tried[now.Revision]:
			return now, nil
		case rerr != nil && bucket.ClassOf(rerr) != bucket.NotFound:
			return root{}, rerr
		case class == bucket.Precondition, n >= c.o.Attempts:
			return root{}, err
		}
	}
}

// atOnce is how many roots All reads at once.
const atOnce = 32

// All gives the records of all roots, those of drafts and void ones included, in the order of their names. After a root
// that cannot be read, whose error it gives, it goes on; it ends when roots cannot be listed.
func (c *Catalog) All(ctx context.Context) iter.Seq2[Record, error] {
	return c.Unlike(ctx, func(string, string) bool { return false })
}

// Unlike is All without the roots that are as the caller has seen them: same says so, by a root's key and its ETag.
func (c *Catalog) Unlike(ctx context.Context, same func(key, etag string) bool) iter.Seq2[Record, error] {
	return c.records(ctx, rootDir, same)
}

// Kept is All for what is kept for the readers of removed checkpoints, in the order of the keys.
func (c *Catalog) Kept(ctx context.Context) iter.Seq2[Record, error] {
	return c.records(ctx, removedDir, func(string, string) bool { return false })
}

func (c *Catalog) records(
	ctx context.Context, dir string, same func(key, etag string) bool,
) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		keys := make([]string, 0, atOnce)
		for info, err := range bucket.All(ctx, c.b, dir) {
			if err != nil {
				yield(Record{}, err)
				return
			}
			if same(info.Key, info.ETag) {
				continue
			}
			if keys = append(keys, info.Key); len(keys) == atOnce {
				if !c.readAll(ctx, keys, yield) {
					return
				}
				keys = keys[:0]
			}
		}
		c.readAll(ctx, keys, yield)
	}
}

// readAll reads roots at once, and yields those that are there in the order of the keys.
func (c *Catalog) readAll(ctx context.Context, keys []string, yield func(Record, error) bool) (more bool) {
	roots, errs := make([]root, len(keys)), make([]error, len(keys))
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { roots[i], errs[i] = c.read(ctx, key) })
	}
	all.Wait()
	for i, r := range roots {
		if bucket.ClassOf(errs[i]) != bucket.NotFound && !yield(r.Record, errs[i]) {
			return false
		}
	}
	return true
}

// lookup reads a checkpoint's root. The error is ErrNotFound when there is none, or a void one.
func (c *Catalog) lookup(ctx context.Context, name string) (root, error) {
	if !validName(name) {
		return root{}, fmt.Errorf("%w: name %q", ErrInvalid, name)
	}
	r, err := c.read(ctx, rootDir+name)
	if bucket.ClassOf(err) == bucket.NotFound || err == nil && r.State == Void {
		return r, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return r, err
}
