// Package s3 is a bucket on a server that speaks S3: Amazon's, or another one.
//
// Each call is one request and is not repeated here, except once with fresh credentials when those in use have expired.
// A request on which nothing moves for a minute is given up. What is written is signed with its SHA-256, so a server
// refuses what was damaged on its way, over plain HTTP too.
//
// The bucket must keep no old versions and no objects under retention: what is deleted would go on costing space.
package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// MaxObject is the length in bytes of the largest object that one request can write.
const MaxObject = 5 << 30

// Keys are credentials given by hand.
type Keys struct {
	ID, Secret, Token string
}

// String tells nothing.
func (Keys) String() string { return "keys" }

// GoString tells nothing.
func (Keys) GoString() string { return "keys" }

// Options are how requests are made. The zero Options have defaults.
type Options struct {
	// Keys are used when they are set. By default credentials are found as Amazon's tools find them: the environment,
	// the shared file, then the role of the container or machine.
	Keys Keys
	// Stall is how long a request may stand still, a minute by default.
	Stall time.Duration
}

// Bucket is a bucket on a server. Close ends it.
type Bucket struct {
	address   Address
	prefix    string // of keys, with its slash
	core      *minio.Core
	keys      *credentials.Credentials
	transport *http.Transport
	stall     time.Duration
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open gives the bucket at an address. It makes no request.
func Open(a Address, o Options) (*Bucket, error) {
	if o.Stall <= 0 {
		o.Stall = time.Minute
	}
	host, secure := "s3.amazonaws.com", true
	region := a.Region
	if a.Endpoint != "" {
		kind, rest, _ := strings.Cut(a.Endpoint, "://")
		host, secure = rest, kind == "https"
		if region == "" {
			region = "us-east-1" // what servers other than Amazon's have unless they are told otherwise
		}
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fail("open", "", err)
	}
	transport.MaxIdleConnsPerHost = 64
	keys := found(o)
	core, err := minio.NewCore(host, &minio.Options{
		Creds: keys, Secure: secure, Region: region, Transport: conditional{transport}, MaxRetries: 1,
	})
	if err != nil {
		return nil, fail("open", "", err)
	}
	b := &Bucket{address: a, core: core, keys: keys, transport: transport, stall: o.Stall}
	if a.Prefix != "" {
		b.prefix = a.Prefix + "/"
	}
	return b, nil
}

// String gives the bucket's address.
func (b *Bucket) String() string { return b.address.String() }

// Close closes idle connections. No call may be under way.
func (b *Bucket) Close() { b.transport.CloseIdleConnections() }

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string, p []byte, off int64) (n int, info bucket.Info, err error) {
	if off < 0 {
		return 0, info, bucket.Fail(bucket.Invalid, "get", key, "offset %d", off)
	}
	if len(p) == 0 {
		info, err = b.Stat(ctx, key)
		return 0, info, err
	}
	err = b.request(ctx, "get", key, func(ctx context.Context, w *watch) error {
		n, info, err = b.get(ctx, w, key, p, off)
		return err
	})
	var answer minio.ErrorResponse
	if errors.As(err, &answer) && answer.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		info, err = b.Stat(ctx, key)
		if err == nil && off < info.Size {
			err = bucket.Fail(bucket.Corrupt, "get", key, "the server refuses offset %d of %d", off, info.Size)
		}
		return 0, info, err
	}
	return n, info, err
}

func (b *Bucket) get(ctx context.Context, w *watch, key string, p []byte, off int64) (int, bucket.Info, error) {
	var o minio.GetObjectOptions
	if err := o.SetRange(off, off+int64(len(p))-1); err != nil {
		return 0, bucket.Info{}, err
	}
	body, object, header, err := b.core.GetObject(ctx, b.address.Bucket, b.prefix+key, o)
	if err != nil {
		return 0, bucket.Info{}, err
	}
	defer body.Close()
	first, last, size, err := span(header.Get("Content-Range"), object.Size)
	want := min(int64(len(p)), size-off)
	if err != nil || first != off || last-first+1 < want || object.Size < want {
		return 0, bucket.Info{}, bucket.Fail(bucket.Corrupt, "get", key, "asked for %d bytes at %d, and the server "+
			"sends %q with %d bytes", len(p), off, header.Get("Content-Range"), object.Size)
	}
	n, err := io.ReadFull(w.reader(body), p[:want])
	if err != nil {
		return 0, bucket.Info{}, err
	}
	return n, bucket.Info{Key: key, Size: size, ETag: object.ETag}, nil
}

// span reads a Content-Range. Without one the object comes whole, length bytes of it.
func span(s string, length int64) (first, last, size int64, err error) {
	if s == "" {
		return 0, length - 1, length, nil
	}
	rest, ok := strings.CutPrefix(s, "bytes ")
	part, total, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(part, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if !ok || !ok2 || !ok3 || errors.Join(err1, err2, err3) != nil || first < 0 || last < first || size <= last {
		return 0, 0, 0, errors.New("invalid Content-Range")
	}
	return first, last, size, nil
}

// Put implements bucket.Bucket. Content is read twice.
func (b *Bucket) Put(
	ctx context.Context, key string, content io.ReaderAt, size int64, cond bucket.Cond,
) (etag string, err error) {
	if size < 0 || size > MaxObject {
		return "", bucket.Fail(bucket.Invalid, "put", key, "%d bytes, at most %d are allowed", size, int64(MaxObject))
	}
	hash := sha256.New()
	if n, err := io.Copy(hash, io.NewSectionReader(content, 0, size)); err != nil || n < size {
		return "", bucket.Fail(bucket.Invalid, "put", key, "read %d bytes of %d: %w", n, size, orEOF(err))
	}
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true}
	if cond.Absent() {
		o.SetMatchETagExcept("*")
	} else if cond.ETag() != "" {
		o.SetMatchETag(cond.ETag())
	}
	err = b.request(ctx, "put", key, func(ctx context.Context, w *watch) error {
		body := w.reader(io.NewSectionReader(content, 0, size))
		sum := hex.EncodeToString(hash.Sum(nil))
		done, err := b.core.PutObject(ctx, b.address.Bucket, b.prefix+key, body, size, "", sum, o)
		etag = done.ETag
		return err
	})
	if err == nil && etag == "" {
		err = bucket.Fail(bucket.Unsupported, "put", key, "the server gives no ETag")
	}
	if cond.ETag() != "" && bucket.ClassOf(err) == bucket.NotFound {
		err = &bucket.Error{Class: bucket.Precondition, Op: "put", Key: key, Err: errors.Unwrap(err)}
	}
	return etag, err
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// List implements bucket.Bucket. After a full page there may be more, or not.
func (b *Bucket) List(ctx context.Context, prefix, after string) (page []bucket.Info, more bool, err error) {
	o := minio.ListObjectsOptions{
		Prefix: b.prefix + prefix, Recursive: true, MaxKeys: bucket.PageSize, FetchOwner: new(bool),
	}
	if after != "" {
		o.StartAfter = b.prefix + after
	}
	err = b.request(ctx, "list", prefix, func(ctx context.Context, w *watch) error {
		page = page[:0]
		for object := range b.core.ListObjectsIter(ctx, b.address.Bucket, o) {
			w.moved()
			if object.Err != nil {
				return object.Err
			}
			key, ok := strings.CutPrefix(object.Key, b.prefix)
			if !ok || !strings.HasPrefix(key, prefix) || key <= after || object.ETag == "" || object.Size < 0 {
				return fmt.Errorf("%w: it lists %q", errListing, object.Key)
			}
			page = append(page, bucket.Info{Key: key, Size: object.Size, ETag: object.ETag})
			if after = key; len(page) == bucket.PageSize {
				return nil
			}
		}
		return ctx.Err() // the iterator ends without a word when its context does
	})
	if err != nil {
		return nil, false, err
	}
	return page, len(page) == bucket.PageSize, nil
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string, cond bucket.Cond) error {
	if cond.Absent() {
		return bucket.Fail(bucket.Invalid, "delete", key, "what is absent cannot be removed")
	}
	if cond.ETag() != "" {
		ctx = context.WithValue(ctx, matchKey{}, cond.ETag())
	}
	err := b.request(ctx, "delete", key, func(ctx context.Context, _ *watch) error {
		return b.core.RemoveObject(ctx, b.address.Bucket, b.prefix+key, minio.RemoveObjectOptions{})
	})
	if bucket.ClassOf(err) != bucket.NotFound {
		return err
	}
	if cond.None() {
		return nil
	}
	return &bucket.Error{Class: bucket.Precondition, Op: "delete", Key: key, Err: errors.Unwrap(err)}
}

// Stat implements bucket.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (info bucket.Info, err error) {
	err = b.request(ctx, "stat", key, func(ctx context.Context, _ *watch) error {
		object, err := b.core.StatObject(ctx, b.address.Bucket, b.prefix+key, minio.StatObjectOptions{})
		info = bucket.Info{Key: key, Size: object.Size, ETag: object.ETag}
		return err
	})
	return info, err
}
