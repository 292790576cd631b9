package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

const (
	keysHint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile of the shared " +
		"credentials file, or give the machine a role"
	deniedHint   = "let the credentials read, write, list and delete below the bucket's prefix"
	expiredHint  = "get new credentials"
	clockHint    = "set this machine's clock right"
	regionHint   = "give the bucket's region in its address: ?region=REGION"
	endpointHint = "look at the endpoint in the bucket's address"
	bucketHint   = "create the bucket, or look at its name and endpoint"
)

// verdict is what an S3 error code means.
type verdict struct {
	class bucket.Class
	hint  string
}

var codes = map[string]verdict{
	"NoSuchKey":                    {bucket.NotFound, ""},
	"NoSuchBucket":                 {bucket.NoBucket, bucketHint},
	"PreconditionFailed":           {bucket.Precondition, ""},
	"ConditionalRequestConflict":   {bucket.Transient, ""},
	"OperationAborted":             {bucket.Transient, ""},
	"RequestTimeout":               {bucket.Transient, ""},
	"SlowDown":                     {bucket.Transient, ""},
	"Throttling":                   {bucket.Transient, ""},
	"ThrottlingException":          {bucket.Transient, ""},
	"RequestLimitExceeded":         {bucket.Transient, ""},
	"AccessDenied":                 {bucket.Denied, deniedHint},
	"AllAccessDisabled":            {bucket.Denied, deniedHint},
	"XAdminUserNotFound":           {bucket.Denied, keysHint}, // versitygw's, with status 404
	"InvalidAccessKeyId":           {bucket.Denied, keysHint},
	"SignatureDoesNotMatch":        {bucket.Denied, keysHint},
	"InvalidToken":                 {bucket.Denied, expiredHint},
	"ExpiredToken":                 {bucket.Denied, expiredHint},
	"ExpiredTokenException":        {bucket.Denied, expiredHint},
	"TokenRefreshRequired":         {bucket.Denied, expiredHint},
	"RequestTimeTooSkewed":         {bucket.Denied, clockHint},
	"BadDigest":                    {bucket.Corrupt, ""},
	"XAmzContentSHA256Mismatch":    {bucket.Corrupt, ""},
	"IncompleteBody":               {bucket.Transient, ""},
	"InvalidBucketName":            {bucket.Invalid, ""},
	"EntityTooLarge":               {bucket.Invalid, ""},
	"KeyTooLongError":              {bucket.Invalid, ""},
	"AuthorizationHeaderMalformed": {bucket.Invalid, regionHint},
	"InvalidRegion":                {bucket.Invalid, regionHint},
	"PermanentRedirect":            {bucket.Invalid, regionHint},
	"NotImplemented":               {bucket.Unsupported, ""},
	"MethodNotAllowed":             {bucket.Unsupported, ""},
}

// fail classifies an error of the library. The error it gives has one line, and nothing of a request's headers.
func fail(op, key string, err error) error {
	var done *bucket.Error
	if errors.As(err, &done) {
		return err
	}
	e := &bucket.Error{Class: bucket.Other, Op: op, Key: key, Err: err}
	var (
		answer  minio.ErrorResponse
		unknown x509.UnknownAuthorityError
		noHost  *net.DNSError
		dialled *url.Error
		broken  net.Error
	)
	switch {
	case errors.As(err, &answer):
		v := judge(answer)
		e.Class, e.Hint, e.Err = v.class, v.hint, said{answer}
	case errors.Is(err, errNoKeys):
		e.Class, e.Hint = bucket.Denied, keysHint
	case errors.Is(err, errListing):
		e.Class = bucket.Corrupt
	case errors.As(err, &noHost) && noHost.IsNotFound:
		e.Class, e.Hint = bucket.Invalid, endpointHint
	case errors.As(err, &unknown):
		e.Class, e.Hint = bucket.Invalid, "let this machine trust the server's certificate, or "+endpointHint
	case errors.Is(err, http.ErrSchemeMismatch):
		e.Class, e.Hint = bucket.Invalid, endpointHint
	case errors.As(err, &dialled), errors.As(err, &broken), errors.Is(err, errStalled),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		e.Class = bucket.Transient
	}
	return e
}

// ended is the error of a request whose context did.
func ended(ctx context.Context, op, key string) error {
	return &bucket.Error{Class: bucket.Other, Op: op, Key: key, Err: context.Cause(ctx)}
}

// judge classifies a server's answer by its code, and by its status where the code says nothing. A 404 alone is no
// NotFound, as it may be about something else than the object.
func judge(r minio.ErrorResponse) verdict {
	if v, ok := codes[r.Code]; ok {
		return v
	}
	transient := []int{http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	switch {
	case r.StatusCode == http.StatusPreconditionFailed:
		return verdict{bucket.Precondition, ""}
	case r.StatusCode == http.StatusConflict, slices.Contains(transient, r.StatusCode):
		return verdict{bucket.Transient, ""}
	case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
		return verdict{bucket.Denied, deniedHint}
	case r.StatusCode == http.StatusNotImplemented:
		return verdict{bucket.Unsupported, ""}
	case r.StatusCode/100 == 3:
		return verdict{bucket.Invalid, regionHint}
	}
	return verdict{bucket.Other, ""}
}

// said tells a server's answer in one line.
type said struct{ minio.ErrorResponse }

func (s said) Error() string {
	const most = 300
	text := strings.Join(strings.Fields(s.Message), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	code := strings.Join(strings.Fields(s.Code), " ")
	return strings.TrimSpace(fmt.Sprintf("%s (%s, HTTP %d)", text, code, s.StatusCode))
}

// Unwrap gives the library's error.
func (s said) Unwrap() error { return s.ErrorResponse }
