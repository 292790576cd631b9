package s3_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/buckettest"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func opened(t *testing.T, address string, o s3.Options) *s3.Bucket {
	t.Helper()
	a, err := s3.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s3.Open(a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// TestConformance runs the suite of all buckets against a real server.
func TestConformance(t *testing.T) {
	server := s3server.Start(t)
	n := 0
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		n++
		name, prefix := fmt.Sprint("bucket-", n), ""
		if n%2 == 0 {
			prefix = "/some/where"
		}
		server.Bucket(t, name)
		keys := s3.Keys{ID: s3server.KeyID, Secret: s3server.Secret}
		return opened(t, "s3://"+name+prefix+"?endpoint="+server.Endpoint, s3.Options{Keys: keys})
	})
}

// TestRefused: what a server refuses has a class and a hint, and no secret in its words.
func TestRefused(t *testing.T) {
	server := s3server.Start(t)
	server.Bucket(t, "bucket")
	right := s3.Keys{ID: s3server.KeyID, Secret: s3server.Secret}
	for _, c := range []struct {
		name, bucket string
		keys         s3.Keys
		want         bucket.Class
	}{
		{"no bucket", "another", right, bucket.NoBucket},
		{"wrong key", "bucket", s3.Keys{ID: "nobody", Secret: s3server.Secret}, bucket.Denied},
		{"wrong secret", "bucket", s3.Keys{ID: s3server.KeyID, Secret: "hush-hush"}, bucket.Denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := opened(t, "s3://"+c.bucket+"?endpoint="+server.Endpoint, s3.Options{Keys: c.keys})
			_, _, err := b.List(t.Context(), "", "")
			if bucket.ClassOf(err) != c.want || bucket.HintOf(err) == "" {
				t.Errorf("list: %v of class %v, hint %q", err, bucket.ClassOf(err), bucket.HintOf(err))
			}
			_, _, err = b.Get(t.Context(), "roots/a", make([]byte, 8), 0)
			if bucket.ClassOf(err) != c.want {
				t.Errorf("get: %v of class %v", err, bucket.ClassOf(err))
			}
			tellsNothing(t, err, b, c.keys)
		})
	}
}
