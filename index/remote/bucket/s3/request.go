package s3

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

var (
	errStalled = errors.New("nothing moved for too long")
	errNoKeys  = errors.New("no credentials were found")
	errListing = errors.New("the server's listing has what was not asked for")
)

// watch ends a request on which nothing moves.
type watch struct {
	timer *time.Timer
	stall time.Duration
}

func (w *watch) moved() { w.timer.Reset(w.stall) }

// reader gives a reader of r that shows the watch what moves.
func (w *watch) reader(r io.Reader) io.Reader { return &watched{r, w} }

type watched struct {
	r io.Reader
	w *watch
}

func (r *watched) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.w.moved()
	return n, err
}

// request does one request under a watch, once more when the credentials had expired, and classifies its error.
func (b *Bucket) request(ctx context.Context, op, key string, do func(context.Context, *watch) error) error {
	for last := false; ; last = true {
		watched, cancel := context.WithCancelCause(ctx)
		w := &watch{time.AfterFunc(b.stall, func() { cancel(errStalled) }), b.stall}
		err := do(watched, w)
		w.timer.Stop()
		stalled := context.Cause(watched) == errStalled
		cancel(nil)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx, op, key)
		case stalled:
			return fail(op, key, errStalled)
		case !expired(err) || last:
			return fail(op, key, err)
		}
		b.keys.Expire()
	}
}

// expired says whether a request was refused, and so had no effect, as its credentials were too old.
func expired(err error) bool {
	code := minio.ToErrorResponse(err).Code
	return code == "ExpiredToken" || code == "ExpiredTokenException"
}

type matchKey struct{}

// conditional adds to a removal the condition that its context has: the library has no other way. A condition need not
// be signed.
type conditional struct{ http.RoundTripper }

func (c conditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if etag, ok := r.Context().Value(matchKey{}).(string); ok && r.Method == http.MethodDelete {
		r = r.Clone(r.Context())
		r.Header.Set("If-Match", `"`+etag+`"`)
	}
	return c.RoundTripper.RoundTrip(r)
}

// found gives credentials that are looked for when they are needed first, and when they have expired.
func found(o Options) *credentials.Credentials {
	if o.Keys != (Keys{}) {
		return credentials.NewStaticV4(o.Keys.ID, o.Keys.Secret, o.Keys.Token)
	}
	return credentials.New(&chain{providers: []credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
		// A machine that is not in a cloud must not be kept waiting for the service that tells its role.
		&credentials.IAM{Client: &http.Client{Timeout: 3 * time.Second}},
	}})
}

// chain takes the first provider that has credentials. Unlike the library's it never goes on without any.
type chain struct {
	providers []credentials.Provider
	current   credentials.Provider
}

func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	c.current = nil
	for _, p := range c.providers {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			c.current = p
			return v, nil
		}
	}
	return credentials.Value{}, errNoKeys
}

func (c *chain) Retrieve() (credentials.Value, error) {
	return c.RetrieveWithCredContext(&credentials.CredContext{})
}

func (c *chain) IsExpired() bool { return c.current == nil || c.current.IsExpired() }
