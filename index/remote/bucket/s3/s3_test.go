package s3_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
)

// tellsNothing fails when words that a user or a log may see hold a secret.
func tellsNothing(t *testing.T, err error, b *s3.Bucket, keys s3.Keys) {
	t.Helper()
	said := fmt.Sprintf("%v %+v %#v %s %v %#v", err, errors.Unwrap(err), keys, b, keys, err)
	if keys.Secret != "" && strings.Contains(said, keys.Secret) {
		t.Errorf("a secret in %q", said)
	}
	if strings.Contains(fmt.Sprint(err), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

// answering gives a bucket on a server that does with each request what the test wants.
func answering(t *testing.T, o s3.Options, answer http.HandlerFunc) *s3.Bucket {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return opened(t, "s3://bucket/prefix?endpoint="+server.URL, o)
}

func refusal(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		if r.Method != http.MethodHead && code != "" {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>so it\n is</Message></Error>", code)
		}
	}
}

// object answers with headers and a body, however wrong.
func object(contentRange, body string, length int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Content-Length", fmt.Sprint(length))
		if contentRange != "" {
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(http.StatusPartialContent)
		}
		w.Write([]byte(body))
	}
}

func hangUp(w http.ResponseWriter, _ *http.Request) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

func TestAnswers(t *testing.T) {
	keys := s3.Keys{ID: "id", Secret: "hush-hush"}
	get := func(t *testing.T, b *s3.Bucket) error {
		_, _, err := b.Get(t.Context(), "packs/a", make([]byte, 8), 4)
		return err
	}
	put := func(t *testing.T, b *s3.Bucket) error {
		_, err := b.Put(t.Context(), "packs/a", strings.NewReader("abc"), 3, bucket.IfMatch("e"))
		return err
	}
	remove := func(t *testing.T, b *s3.Bucket) error { return b.Delete(t.Context(), "packs/a", bucket.Cond{}) }
	list := func(t *testing.T, b *s3.Bucket) error { _, _, err := b.List(t.Context(), "packs/", ""); return err }
	stranger := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<ListBucketResult><Contents><Key>other/a</Key><Size>1</Size><ETag>e</ETag></Contents>"+
			"</ListBucketResult>")
	}
	for _, c := range []struct {
		name   string
		do     func(*testing.T, *s3.Bucket) error
		answer http.HandlerFunc
		want   bucket.Class
	}{
		{"busy", get, refusal(503, "SlowDown"), bucket.Transient},
		{"broken", get, refusal(500, "InternalError"), bucket.Transient},
		{"a proxy's words", get, refusal(502, ""), bucket.Transient},
		{"too many", put, refusal(429, "TooManyRequests"), bucket.Transient},
		{"reset", put, hangUp, bucket.Transient},
		{"raced", put, refusal(409, "ConditionalRequestConflict"), bucket.Transient},
		{"changed", put, refusal(412, "PreconditionFailed"), bucket.Precondition},
		{"nothing to match", put, refusal(404, "NoSuchKey"), bucket.Precondition},
		{"bucket gone", put, refusal(404, "NoSuchBucket"), bucket.NoBucket},
		{"damaged on its way", put, refusal(400, "XAmzContentSHA256Mismatch"), bucket.Corrupt},
		{"no ETag", put, func(http.ResponseWriter, *http.Request) {}, bucket.Unsupported},
		{"not found", get, refusal(404, "NoSuchKey"), bucket.NotFound},
		{"some other 404", get, refusal(404, "NoSuchTenant"), bucket.Other},
		{"denied", get, refusal(403, "AccessDenied"), bucket.Denied},
		{"expired", put, refusal(400, "ExpiredToken"), bucket.Denied},
		{"clock", put, refusal(403, "RequestTimeTooSkewed"), bucket.Denied},
		{"region", list, refusal(400, "AuthorizationHeaderMalformed"), bucket.Invalid},
		{"unknown", get, refusal(418, "Teapot"), bucket.Other},
		{"gone already", remove, refusal(404, "NoSuchKey"), bucket.Other},
		{"removal in a gone bucket", remove, refusal(404, "NoSuchBucket"), bucket.NoBucket},
		{"cut off", get, object("bytes 4-11/20", "4567", 8), bucket.Transient},
		{"another range", get, object("bytes 0-7/20", "01234567", 8), bucket.Corrupt},
		{"fewer than there are", get, object("bytes 4-7/20", "4567", 4), bucket.Corrupt},
		{"no such range", get, object("bytes 4-11/3", "01234567", 8), bucket.Corrupt},
		{"no range", get, object("", "0123456789", 10), bucket.Corrupt},
		{"strangers listed", list, stranger, bucket.Corrupt},
		{"stands still", get, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, bucket.Transient},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			b := answering(t, s3.Options{Keys: keys, Stall: 300 * time.Millisecond},
				func(w http.ResponseWriter, r *http.Request) { calls.Add(1); c.answer(w, r) })
			err := c.do(t, b)
			if bucket.ClassOf(err) != c.want || (err == nil) != (c.name == "gone already") {
				t.Errorf("error %v of class %q, want %q", err, bucket.ClassOf(err), c.want)
			}
			most := int32(1)
			if c.name == "expired" {
				most = 2
			}
			if calls.Load() > most {
				t.Errorf("%d requests", calls.Load())
			}
			tellsNothing(t, err, b, keys)
		})
	}
}

// TestOneRequest: a range costs one request, with nothing asked before.
func TestOneRequest(t *testing.T) {
	var asked []string
	b := answering(t, s3.Options{Keys: s3.Keys{ID: "id", Secret: "s"}}, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
		object("bytes 4-11/20", "456789ab", 8)(w, r)
	})
	p := make([]byte, 8)
	n, info, err := b.Get(t.Context(), "packs/a", p, 4)
	if err != nil || string(p[:n]) != "456789ab" || info != (bucket.Info{Key: "packs/a", Size: 20, ETag: "e"}) {
		t.Errorf("read %q of %+v, %v", p[:n], info, err)
	}
	if len(asked) != 1 || asked[0] != "GET /bucket/prefix/packs/a bytes=4-11" {
		t.Errorf("asked for %q", asked)
	}
}

// TestCredentialsAreFound: in the shared file, again when they have expired, and not at all is said.
func TestCredentialsAreFound(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	role := httptest.NewServer(http.NotFoundHandler())
	defer role.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.URL)
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	write := func(id string) {
		text := "[default]\naws_access_key_id = " + id + "\naws_secret_access_key = hush-hush\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	var users []string
	b := answering(t, s3.Options{}, func(w http.ResponseWriter, r *http.Request) {
		_, user, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		user, _, _ = strings.Cut(user, "/")
		if users = append(users, user); user == "OLD" {
			write("NEW")
			refusal(400, "ExpiredToken")(w, r)
		}
	})
	_, err := b.Stat(t.Context(), "a")
	if bucket.ClassOf(err) != bucket.Denied || !strings.Contains(bucket.HintOf(err), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v, hint %q", err, bucket.HintOf(err))
	}
	write("OLD")
	if err := b.Delete(t.Context(), "a", bucket.Cond{}); bucket.ClassOf(err) == bucket.Denied {
		t.Error(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
	b2 := opened(t, b.String(), s3.Options{})
	b2.Delete(t.Context(), "a", bucket.Cond{})
	if got := strings.Join(users, " "); got != "OLD NEW ENVIRONMENT" {
		t.Errorf("requests by %q", got)
	}
}

func TestAddresses(t *testing.T) {
	for s, want := range map[string]s3.Address{
		"s3://checkpoints":                           {Bucket: "checkpoints"},
		"s3://checkpoints/":                          {Bucket: "checkpoints"},
		"s3://my.bucket/a/b?region=eu-west-1":        {Bucket: "my.bucket", Prefix: "a/b", Region: "eu-west-1"},
		"s3://bucket?endpoint=http://127.0.0.1:7070": {Bucket: "bucket", Endpoint: "http://127.0.0.1:7070"},
		"s3://bucket/p/?endpoint=https%3A%2F%2FMinio.local%2F": {
			Bucket: "bucket", Prefix: "p", Endpoint: "https://minio.local"},
		"s3://bucket?endpoint=https://[::1]:9000&region=x": {
			Bucket: "bucket", Endpoint: "https://[::1]:9000", Region: "x"},
		"s3://bucket?endpoint=https://[0:0::1]": {Bucket: "bucket", Endpoint: "https://[::1]"},
	} {
		got, err := s3.Parse(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		if again, err := s3.Parse(got.String()); err != nil || again != got {
			t.Errorf("%s was told as %s: %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "s3:", "s3://", "bucket", "S3://bucket", "http://bucket", "s3://Bucket", "s3://ab", "s3://192.168.0.1",
		"s3://bu..cket", "s3://b_cket", "s3://bucket:80", "s3://bucket//a", "s3://bucket/a//b", "s3://bucket/../a",
		"s3://bucket/./a", "s3://bucket/a b", "s3://bucket/%2e", "s3://bucket#f", "s3://id:SECRET@bucket",
		"s3://bucket?", "s3://bucket?region=", "s3://bucket?region=EU", "s3://bucket?secret=SECRET",
		"s3://bucket?region=a&region=b", "s3://bucket?endpoint=host", "s3://bucket?endpoint=ftp://host",
		"s3://bucket?endpoint=https://", "s3://bucket?endpoint=https://id:SECRET@host",
		"s3://bucket?endpoint=https://h/p",
		"s3://bucket?endpoint=https://h:0", "s3://bucket?endpoint=https://h:65536",
		"s3://bucket?endpoint=https://h:080",
		"s3://bucket?endpoint=https://h:", "s3://bucket?endpoint=https://-h",
		"s3://bucket?endpoint=https://[1.2.3.4]",
		"s3://bucket?endpoint=https://[::1%25eth0]", "s3://bucket?endpoint=%zz", "s3://bucket?endpoint=https://h?x=y",
		"s3://bucket/" + strings.Repeat("a", 600),
	} {
		a, err := s3.Parse(s)
		if bucket.ClassOf(err) != bucket.Invalid || bucket.HintOf(err) == "" || strings.Contains(err.Error(), "SECR") {
			t.Errorf("%s: taken as %+v, %v", s, a, err)
		}
	}
}

// FuzzAddress: what is taken is told in a form that means the same, and can be opened.
func FuzzAddress(f *testing.F) {
	f.Add("s3://bucket/prefix/more?endpoint=https://host:9000&region=eu-west-1")
	f.Add("s3://b.c-d/a@b=c?region=x&endpoint=http://[::1]:80")
	f.Add("s3://id:secret@bucket")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := s3.Parse(s)
		if err != nil {
			return
		}
		again, err := s3.Parse(a.String())
		if err != nil || again != a {
			t.Fatalf("%q is %+v, told as %q, which is %+v, %v", s, a, a.String(), again, err)
		}
		b, err := s3.Open(a, s3.Options{})
		if err != nil {
			t.Fatalf("%q is taken and cannot be opened: %v", s, err)
		}
		b.Close()
	})
}
