package main

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// far opens what the bucket has of gpucr-fs, over the link.
func (b *bench) far(s *subject) (*s3.Bucket, error) {
	a, err := s3.Parse(b.remote(s))
	if err != nil {
		return nil, err
	}
	return s3.Open(a, s3.Options{})
}

// stored gives the bytes of each checkpoint's objects, by names: those of a hot set that was packed later included. It
// notes the id of the one without a profile.
func (b *bench) stored(s *subject) (map[string]int64, error) {
	var list struct {
		Checkpoints []struct {
			Name, ID string
			Stored   int64
		}
	}
	if err := b.gpucr.JSON(b.ctx, &list, "ls", "--remote", s.origin.store); err != nil {
		return nil, err
	}
	far, err := b.far(s)
	if err != nil {
		return nil, err
	}
	defer far.Close()
	out := map[string]int64{}
	for _, c := range list.Checkpoints {
		out[c.Name] = c.Stored
		if c.Name == plainName {
			s.plain = c.ID
		}
		hot, err := catalog.New(far, catalog.Options{}).Find(b.ctx, catalog.Beside(c.ID))
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, p := range hot.Packs {
			out[c.Name] += p.Size
		}
	}
	return out, nil
}

// unlearn takes from the bucket what an earlier restore has learned of the checkpoint without a profile, so that the
// next one is a first one.
func (b *bench) unlearn(s *subject) error {
	far, err := b.far(s)
	if err != nil {
		return err
	}
	defer far.Close()
	return far.Delete(b.ctx, "profiles/"+s.plain, bucket.Cond{})
}

// alone measures what the link gives to one who only reads.
func (b *bench) alone(s *subject) error {
	const connections, piece = 8, 8 << 20
	far, err := b.far(s)
	if err != nil {
		return err
	}
	defer far.Close()
	type part struct {
		key string
		off int64
	}
	var parts []part
	for o, err := range bucket.All(b.ctx, far, "packs/") {
		if err != nil {
			return err
		}
		for off := int64(0); off < o.Size; off += piece {
			parts = append(parts, part{o.Key, off})
		}
	}
	before, begun := b.link.Counts(), time.Now()
	var next atomic.Int64
	var all errgroup.Group
	for range connections {
		all.Go(func() error {
			p := make([]byte, piece)
			for i := next.Add(1) - 1; i < int64(len(parts)); i = next.Add(1) - 1 {
				if _, _, err := far.Get(b.ctx, parts[i].key, p, parts[i].off); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = all.Wait()
	b.results.Sizes[len(b.results.Sizes)-1].Link = float64(b.link.Counts().Minus(before).Received) /
		time.Since(begun).Seconds()
	return err
}
