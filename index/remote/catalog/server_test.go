package catalog_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// TestOnServer lets machines share a bucket of a real server: they dump, use each other's packs, remove and collect.
func TestOnServer(t *testing.T) {
	const machines, rounds = 4, 8
	ctx := t.Context()
	server := s3server.Start(t)
	server.Bucket(t, "bucket")
	a, err := s3.Parse("s3://bucket/store?endpoint=" + server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	open := func() (*s3.Bucket, *catalog.Catalog) {
		b, err := s3.Open(a, s3.Options{Keys: s3.Keys{ID: s3server.KeyID, Secret: s3server.Secret}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		found, err := bucket.Probe(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		return b, catalog.New(b, catalog.Options{ConditionalDelete: found.ConditionalDelete})
	}
	const text = "shared by all"
	var wg sync.WaitGroup
	for m := range machines {
		_, c := open()
		wg.Go(func() {
			for n := range rounds {
				name := fmt.Sprintf("web-%d-%d", m, n)
				if err := dump(t, c, name, fmt.Sprintf("web-%d-0", (m+1)%machines), text); err != nil {
					t.Errorf("dump %s: %v", name, err)
					return
				}
				if n > 0 && n%2 == 0 {
					if err := c.Remove(ctx, fmt.Sprintf("web-%d-%d", m, n-1)); err != nil {
						t.Errorf("remove: %v", err)
					}
				}
			}
		})
		wg.Go(func() {
			g := c.Collector(catalog.Patience{Pending: time.Hour})
			for range rounds {
				if _, err := g.Collect(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b, c := open()
	g := c.Collector(catalog.Patience{})
	for range 2 {
		if _, err := g.Collect(ctx); err != nil {
			t.Error(err)
		}
	}
	var needed, kept []string
	for r, err := range c.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		k, err := c.Find(ctx, r.Name)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text)+1)
		if n, err := k.ReadAt(ctx, k.Packs[0], got, 0); err != nil || string(got[:n]) != text {
			t.Errorf("%s reads %q, %v", r.Name, got[:n], err)
		}
		needed = append(needed, catalog.PackKey(k.Packs[0].ID))
	}
	for info, err := range bucket.All(ctx, b, "") {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(info.Key, "roots/") {
			kept = append(kept, info.Key)
		}
	}
	slices.Sort(needed)
	if needed = slices.Compact(needed); !slices.Equal(needed, kept) {
		t.Errorf("%v are needed, %v are kept", needed, kept)
	}
	if want := machines * (rounds - (rounds-1)/2); len(needed) == 0 || len(kept) > want {
		t.Errorf("%d packs for at most %d checkpoints", len(kept), want)
	}
}

// dump makes a checkpoint, from another one's pack where that stands.
func dump(t *testing.T, c *catalog.Catalog, name, other, text string) error {
	ctx := t.Context()
	d, err := c.Begin(ctx, name)
	if err != nil {
		return err
	}
	var packs []catalog.Pack
	if k, err := c.Find(ctx, other); err == nil {
		if packs = k.Packs; len(packs) > 0 {
			lost, err := d.Claim(ctx, packs)
			if err != nil {
				return err
			}
			if len(lost) > 0 {
				packs = nil
			}
		}
	} else if !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	if len(packs) == 0 {
		p, err := d.Add(ctx, strings.NewReader(text), int64(len(text)))
		if err != nil {
			return err
		}
		packs = []catalog.Pack{p}
	}
	return d.Seal(ctx, packs, nil)
}
