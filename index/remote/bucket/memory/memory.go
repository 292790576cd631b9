// Package memory is a bucket in memory, for tests and simulations. It keeps what package bucket asks of a server to the
// letter: each request happens at one instant, and every later one sees it.
package memory

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Call is one request to a bucket.
type Call struct {
	Op      string // "get", "put", "list", "delete", "stat"
	Key     string // of a listing, the prefix
	Content []byte // of a put; not to be changed
	Cond    bucket.Cond
}

// Hooks are what a test has a say in. Both may be nil.
type Hooks struct {
	// Before is called before a request has an effect, without a lock. When it gives an error, the caller gets that
	// error; happens says whether a write has its effect all the same.
	Before func(Call) (happens bool, err error)
	// After is called at the instant of each change, with the lock held: it must not use the bucket. Removed tells that
	// an object was removed or replaced.
	After func(c Call, removed []byte)
}

// Bucket is a bucket in memory.
type Bucket struct {
	hooks Hooks

	mu      sync.Mutex
	keys    []string // sorted
	objects map[string]object
}

type object struct {
	content []byte
	etag    string
}

// New gives an empty bucket.
func New(h Hooks) *Bucket { return &Bucket{hooks: h, objects: map[string]object{}} }

// Keys gives the keys of all objects in their order.
func (b *Bucket) Keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.keys)
}

// Content gives the content of an object, nil when there is none. It makes no call of the hooks.
func (b *Bucket) Content(key string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[key].content
}

// Apply does a put or a delete now, as the server does it: for requests whose effect a test has put off.
func (b *Bucket) Apply(c Call) error {
	_, err := b.change(c)
	return err
}

func (b *Bucket) before(ctx context.Context, c Call) (happens bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if b.hooks.Before == nil {
		return true, nil
	}
	happens, err = b.hooks.Before(c)
	return happens || err == nil, err
}

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, p []byte, off int64) (int, bucket.Info, error) {
	if off < 0 {
		return 0, bucket.Info{}, bucket.Fail(bucket.Invalid, "get", key, "offset %d", off)
	}
	if _, err := b.before(ctx, Call{Op: "get", Key: key}); err != nil {
		return 0, bucket.Info{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[key]
	if !ok {
		return 0, bucket.Info{}, &bucket.Error{Class: bucket.NotFound, Op: "get", Key: key}
	}
	n := 0
	if off < int64(len(o.content)) {
		n = copy(p, o.content[off:])
	}
	return n, info(key, o), nil
}

// Stat implements bucket.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (bucket.Info, error) {
	if _, err := b.before(ctx, Call{Op: "stat", Key: key}); err != nil {
		return bucket.Info{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[key]
	if !ok {
		return bucket.Info{}, &bucket.Error{Class: bucket.NotFound, Op: "stat", Key: key}
	}
	return info(key, o), nil
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix, after string) ([]bucket.Info, bool, error) {
	if _, err := b.before(ctx, Call{Op: "list", Key: prefix}); err != nil {
		return nil, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var page []bucket.Info
	i, _ := slices.BinarySearch(b.keys, max(prefix, after))
	for ; i < len(b.keys); i++ {
		key := b.keys[i]
		switch {
		case key == after && after != "":
		case !strings.HasPrefix(key, prefix):
			return page, false, nil
		case len(page) == bucket.PageSize:
			return page, true, nil
		default:
			page = append(page, info(key, b.objects[key]))
		}
	}
	return page, false, nil
}

// Put implements bucket.Bucket.
func (b *Bucket) Put(
	ctx context.Context, key string, content io.ReaderAt, size int64, cond bucket.Cond,
) (string, error) {
	p := make([]byte, size)
	if n, err := content.ReadAt(p, 0); int64(n) < size {
		return "", bucket.Fail(bucket.Invalid, "put", key, "%d bytes of %d: %w", n, size, err)
	}
	return b.write(ctx, Call{Op: "put", Key: key, Content: p, Cond: cond})
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string, cond bucket.Cond) error {
	if cond.Absent() {
		return bucket.Fail(bucket.Invalid, "delete", key, "what is absent cannot be removed")
	}
	_, err := b.write(ctx, Call{Op: "delete", Key: key, Cond: cond})
	return err
}

func (b *Bucket) write(ctx context.Context, c Call) (string, error) {
	happens, err := b.before(ctx, c)
	if !happens {
		return "", err
	}
	etag, failed := b.change(c)
	if err != nil {
		return "", err
	}
	return etag, failed
}

func (b *Bucket) change(c Call) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, exists := b.objects[c.Key]
	if c.Cond.Absent() && exists || c.Cond.ETag() != "" && c.Cond.ETag() != old.etag {
		return "", &bucket.Error{Class: bucket.Precondition, Op: c.Op, Key: c.Key}
	}
	at, _ := slices.BinarySearch(b.keys, c.Key)
	var etag string
	switch {
	case c.Op == "put":
		etag = strconv.FormatUint(xxh3.Hash(c.Content), 16)
		b.objects[c.Key] = object{c.Content, etag}
		if !exists {
			b.keys = slices.Insert(b.keys, at, c.Key)
		}
	case exists:
		delete(b.objects, c.Key)
		b.keys = slices.Delete(b.keys, at, at+1)
	default:
		return "", nil
	}
	if b.hooks.After != nil {
		b.hooks.After(c, old.content)
	}
	return etag, nil
}

func info(key string, o object) bucket.Info {
	return bucket.Info{Key: key, Size: int64(len(o.content)), ETag: o.etag}
}
