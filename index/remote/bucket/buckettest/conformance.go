// Package buckettest is what every bucket must do, as a test that each implementation runs.
package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Run runs the suite. Open gives an empty bucket each time.
func Run(t *testing.T, open func(t *testing.T) bucket.Bucket) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, bucket.Bucket)
	}{
		{"ranges", ranges}, {"whole", whole}, {"missing", missing}, {"if absent", ifAbsent}, {"if match", ifMatch},
		{"delete", deletes}, {"list", list}, {"pages", pages}, {"keys", keys}, {"race", race}, {"cancelled", cancelled},
		{"probe", probe},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func put(t *testing.T, b bucket.Bucket, key, content string, cond bucket.Cond) string {
	t.Helper()
	etag, err := write(t, b, key, content, cond)
	if err != nil {
		t.Fatal(err)
	}
	if etag == "" || strings.Contains(etag, `"`) {
		t.Fatalf("ETag %q", etag)
	}
	return etag
}

func write(t *testing.T, b bucket.Bucket, key, content string, cond bucket.Cond) (string, error) {
	return b.Put(t.Context(), key, strings.NewReader(content), int64(len(content)), cond)
}

func holds(t *testing.T, b bucket.Bucket, key, want string) {
	t.Helper()
	got, _, err := bucket.ReadAll(t.Context(), b, key, 1<<20)
	if err != nil || string(got) != want {
		t.Fatalf("%s holds %q, %v; want %q", key, got, err, want)
	}
}

func fails(t *testing.T, err error, want bucket.Class) {
	t.Helper()
	if err == nil || bucket.ClassOf(err) != want {
		t.Fatalf("error %v of class %q, want %q", err, bucket.ClassOf(err), want)
	}
}

func ranges(t *testing.T, b bucket.Bucket) {
	etag := put(t, b, "packs/a", "0123456789", bucket.Cond{})
	put(t, b, "packs/empty", "", bucket.Cond{})
	for _, c := range []struct {
		key    string
		off, n int64
		want   string
	}{
		{"packs/a", 0, 10, "0123456789"}, {"packs/a", 0, 20, "0123456789"}, {"packs/a", 3, 4, "3456"},
		{"packs/a", 9, 1, "9"}, {"packs/a", 8, 5, "89"}, {"packs/a", 10, 4, ""}, {"packs/a", 11, 4, ""},
		{"packs/a", 2, 0, ""}, {"packs/empty", 0, 4, ""},
	} {
		p := bytes.Repeat([]byte{'.'}, int(c.n))
		n, info, err := b.Get(t.Context(), c.key, p, c.off)
		if err != nil || string(p[:n]) != c.want {
			t.Errorf("%d bytes at %d of %s: %q, %v; want %q", c.n, c.off, c.key, p[:n], err, c.want)
		}
		if strings.Trim(string(p[n:]), ".") != "" {
			t.Errorf("%d bytes at %d of %s: what is beyond the object was written", c.n, c.off, c.key)
		}
		if c.key == "packs/a" && (info.Size != 10 || info.ETag != etag || info.Key != c.key) {
			t.Errorf("%d bytes at %d: the object is %+v", c.n, c.off, info)
		}
	}
	_, _, err := b.Get(t.Context(), "packs/a", make([]byte, 1), -1)
	fails(t, err, bucket.Invalid)
}

func whole(t *testing.T, b bucket.Bucket) {
	big := strings.Repeat("gpucr-fs", 1<<15)
	put(t, b, "big", big, bucket.Cond{})
	holds(t, b, "big", big)
	_, _, err := bucket.ReadAll(t.Context(), b, "big", int64(len(big))-1)
	fails(t, err, bucket.Invalid)
	put(t, b, "big", "small", bucket.Cond{})
	holds(t, b, "big", "small")
	_, err = b.Put(t.Context(), "short", strings.NewReader("abc"), 4, bucket.Cond{})
	if err == nil {
		t.Error("an object was made of fewer bytes than were promised")
	}
	_, err = b.Stat(t.Context(), "short")
	fails(t, err, bucket.NotFound)
}

func missing(t *testing.T, b bucket.Bucket) {
	_, _, err := b.Get(t.Context(), "none", make([]byte, 4), 0)
	fails(t, err, bucket.NotFound)
	_, err = b.Stat(t.Context(), "none")
	fails(t, err, bucket.NotFound)
	page, more, err := b.List(t.Context(), "none", "")
	if len(page) != 0 || more || err != nil {
		t.Errorf("listed %v, %v, %v", page, more, err)
	}
}

func ifAbsent(t *testing.T, b bucket.Bucket) {
	etag := put(t, b, "roots/a", "first", bucket.IfAbsent)
	_, err := write(t, b, "roots/a", "second", bucket.IfAbsent)
	fails(t, err, bucket.Precondition)
	holds(t, b, "roots/a", "first")
	want := bucket.Info{Key: "roots/a", Size: 5, ETag: etag}
	if info, err := b.Stat(t.Context(), "roots/a"); err != nil || info != want {
		t.Errorf("stat: %+v, %v", info, err)
	}
}

func ifMatch(t *testing.T, b bucket.Bucket) {
	_, err := write(t, b, "roots/a", "x", bucket.IfMatch("d41d8cd98f00b204e9800998ecf8427e"))
	fails(t, err, bucket.Precondition)
	_, err = b.Stat(t.Context(), "roots/a")
	fails(t, err, bucket.NotFound)

	one := put(t, b, "roots/a", "one", bucket.Cond{})
	two := put(t, b, "roots/a", "two", bucket.IfMatch(one))
	if one == two {
		t.Error("different contents have one ETag")
	}
	_, err = write(t, b, "roots/a", "three", bucket.IfMatch(one))
	fails(t, err, bucket.Precondition)
	holds(t, b, "roots/a", "two")
}

func deletes(t *testing.T, b bucket.Bucket) {
	put(t, b, "packs/a", "a", bucket.Cond{})
	for range 2 {
		if err := b.Delete(t.Context(), "packs/a", bucket.Cond{}); err != nil {
			t.Fatal(err)
		}
		_, err := b.Stat(t.Context(), "packs/a")
		fails(t, err, bucket.NotFound)
	}
	put(t, b, "packs/a", "anew", bucket.IfAbsent)
	holds(t, b, "packs/a", "anew")
}

func keysOf(t *testing.T, b bucket.Bucket, prefix string) []string {
	t.Helper()
	var keys []string
	for info, err := range bucket.All(t.Context(), b, prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func list(t *testing.T, b bucket.Bucket) {
	etag := put(t, b, "roots/b", "bee", bucket.Cond{})
	for _, key := range []string{"roots/a", "roots/b-1", "roots/b=c", "roots0", "packs/x", "roots/Z"} {
		put(t, b, key, key, bucket.Cond{})
	}
	want := []string{"roots/Z", "roots/a", "roots/b", "roots/b-1", "roots/b=c"}
	if got := keysOf(t, b, "roots/"); !slices.Equal(got, want) {
		t.Errorf("roots/ has %v, want %v", got, want)
	}
	if got := keysOf(t, b, "roots/b"); !slices.Equal(got, want[2:]) {
		t.Errorf("roots/b has %v, want %v", got, want[2:])
	}
	if got := keysOf(t, b, ""); len(got) != 7 {
		t.Errorf("the bucket has %v", got)
	}
	page, more, err := b.List(t.Context(), "roots/", "roots/a")
	if err != nil || more || len(page) != 3 || page[0] != (bucket.Info{Key: "roots/b", Size: 3, ETag: etag}) {
		t.Errorf("after roots/a: %v, %v, %v", page, more, err)
	}
}

func pages(t *testing.T, b bucket.Bucket) {
	const n = bucket.PageSize + 20
	var want []string
	var wg sync.WaitGroup
	queue := make(chan string)
	for range 8 {
		wg.Go(func() {
			for key := range queue {
				if _, err := write(t, b, key, key, bucket.Cond{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		key := fmt.Sprintf("packs/%06d", i)
		want = append(want, key)
		queue <- key
	}
	close(queue)
	wg.Wait()
	page, more, err := b.List(t.Context(), "packs/", "")
	if err != nil || len(page) != bucket.PageSize || !more {
		t.Errorf("first page: %d objects, more %v, %v", len(page), more, err)
	}
	if got := keysOf(t, b, "packs/"); !slices.Equal(got, want) {
		t.Errorf("listed %d objects, want %d", len(got), n)
	}
}

func keys(t *testing.T, b bucket.Bucket) {
	for _, key := range []string{
		"roots/2026-01-02T15:04:05+01:00", "roots/app@sha256", "roots/web=1~rc%2F", "roots/a b", "roots/ü", "roots/&<>",
	} {
		put(t, b, key, key, bucket.IfAbsent)
		holds(t, b, key, key)
		if got := keysOf(t, b, key); !slices.Equal(got, []string{key}) {
			t.Errorf("listed %q for %q", got, key)
		}
	}
}

func race(t *testing.T, b bucket.Bucket) {
	const clients = 8
	for round := range 5 {
		var wg sync.WaitGroup
		errs := make([]error, clients)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = write(t, b, fmt.Sprint("roots/", round), fmt.Sprint(i), bucket.IfAbsent)
			})
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("both %d and %d made the object", winner, i)
			case err == nil:
				winner = i
			default:
				fails(t, err, bucket.Precondition)
			}
		}
		holds(t, b, fmt.Sprint("roots/", round), fmt.Sprint(winner))
	}
}

func cancelled(t *testing.T, b bucket.Bucket) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Stat(ctx, "a")
	if !errors.Is(err, context.Canceled) || bucket.ClassOf(err) == bucket.Transient {
		t.Errorf("stat: %v", err)
	}
	_, err = b.Put(ctx, "a", strings.NewReader("a"), 1, bucket.Cond{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v", err)
	}
	_, _, err = b.List(ctx, "", "")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
}

func probe(t *testing.T, b bucket.Bucket) {
	found, err := bucket.Probe(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("found: %+v", found)
	if left := keysOf(t, b, ""); len(left) != 0 {
		t.Errorf("the probe left %v", left)
	}
	if !found.ConditionalDelete {
		return
	}
	old := put(t, b, "a", "one", bucket.Cond{})
	now := put(t, b, "a", "two", bucket.Cond{})
	fails(t, b.Delete(t.Context(), "a", bucket.IfMatch(old)), bucket.Precondition)
	holds(t, b, "a", "two")
	if err := b.Delete(t.Context(), "a", bucket.IfMatch(now)); err != nil {
		t.Fatal(err)
	}
	_, err = b.Stat(t.Context(), "a")
	fails(t, err, bucket.NotFound)
}
