// Package bucket is what the store asks of an object store: five requests, the conditions under which a write happens,
// and errors that are classified once.
//
// What is asked of a server beyond S3's plain requests is strong consistency: a request that has been answered is seen
// by every request that begins later, listings included; and writes with a condition are decided one after the other.
// Probe finds out whether a server keeps the second promise.
//
// # Outcomes
//
// A write that fails with class Transient may have happened, may not have happened, and may still happen later. Every
// other class says that it has not happened. Retry therefore repeats only what may be done twice.
package bucket

import (
	"context"
	"io"
	"iter"
)

// PageSize is the most objects that one List gives, as with S3.
const PageSize = 1000

// Info is what a bucket tells of an object.
type Info struct {
	Key  string
	Size int64  // bytes
	ETag string // opaque, without quotes; equal contents may have equal ETags
}

// Cond says under which condition a write or a removal happens. The zero Cond is none.
type Cond struct {
	absent bool
	etag   string
}

// IfAbsent lets a write happen only where there is no object of that name.
var IfAbsent = Cond{absent: true}

// IfMatch lets a write or a removal happen only where the object's ETag is etag, which must not be empty.
func IfMatch(etag string) Cond {
	if etag == "" {
		panic("bucket: a condition on an empty ETag")
	}
	return Cond{etag: etag}
}

// Absent says whether the condition is that there is no object.
func (c Cond) Absent() bool { return c.absent }

// ETag gives the ETag that the object must have, "" for any.
func (c Cond) ETag() string { return c.etag }

// None says whether there is no condition.
func (c Cond) None() bool { return c == Cond{} }

// Bucket is an object store, or the part of one below a prefix. Its methods may be called at once. Their errors are of
// type *Error, unless the context ended; then they wrap the context's error.
type Bucket interface {
	// Get reads the object's bytes from off on into p. It reads less than len(p) only where the object ends, and
	// nothing at its end or beyond. Info tells the whole object's size. Bytes that do not fit what the server announced
	// are class Corrupt; a connection that broke is Transient.
	Get(ctx context.Context, key string, p []byte, off int64) (int, Info, error)
	// Put writes an object of size bytes, at once: nobody sees a part of it. It gives the new object's ETag. A
	// condition that does not hold is class Precondition, also where the object to match does not exist.
	Put(ctx context.Context, key string, content io.ReaderAt, size int64, cond Cond) (etag string, err error)
	// List gives up to PageSize objects whose keys begin with prefix and come after the key after, in the order of
	// their bytes, and whether there may be more.
	List(ctx context.Context, prefix, after string) (page []Info, more bool, err error)
	// Delete removes an object. Without a condition one that does not exist is no error; with IfMatch it is class
	// Precondition or none, as the server has it. IfMatch serves only where Probe found that it does.
	Delete(ctx context.Context, key string, cond Cond) error
	// Stat tells of an object without reading it. Servers have no room for reasons in their answer: NotFound may mean
	// that the bucket is missing.
	Stat(ctx context.Context, key string) (Info, error)
}

// All lists every object whose key begins with prefix. It ends with the first error.
func All(ctx context.Context, b Bucket, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for after := ""; ; {
			page, more, err := b.List(ctx, prefix, after)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, info := range page {
				if !yield(info, nil) {
					return
				}
			}
			if !more || len(page) == 0 {
				return
			}
			after = page[len(page)-1].Key
		}
	}
}

// ReadAll reads an object of at most limit bytes. A larger one is class Invalid.
func ReadAll(ctx context.Context, b Bucket, key string, limit int64) ([]byte, Info, error) {
	p := make([]byte, min(limit, firstRead))
	for {
		n, info, err := b.Get(ctx, key, p, 0)
		switch {
		case err != nil:
			return nil, Info{}, err
		case info.Size > limit:
			return nil, info, &Error{Class: Invalid, Op: "read", Key: key, Err: errTooLarge}
		case info.Size <= int64(n):
			return p[:n], info, nil
		}
		p = make([]byte, info.Size)
	}
}

// firstRead is how much ReadAll asks for before it knows the object's size: nearly all small records in one request.
const firstRead = 4 << 10
