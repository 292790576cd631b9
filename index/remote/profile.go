package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// A profile that was learned after its checkpoint had been pushed lies in an object of its own, by the checkpoint's
// id: a CRC-32C and the profile, or these sealed. The last one who learned one counts. It is a hint: nothing refers to
// it, and a restore without it does what a first one does.
const profileDir = "profiles/"

func profilePurpose(id string) string { return cipher.ForProfile + " " + id }

// PutProfile keeps the profile of a checkpoint that stands, for those who pull it.
func (s *Store) PutProfile(ctx context.Context, id string, profile []byte) error {
	b := append(binary.LittleEndian.AppendUint32(nil, crc32c.Checksum(profile)), profile...)
	if c := s.o.Cipher; c != nil {
		b = c.Seal(profilePurpose(id), b)
	}
	_, err := s.b.Put(ctx, profileDir+id, bytes.NewReader(b), int64(len(b)), bucket.Cond{})
	return Classify("keep a profile", err)
}

// maxProfile bounds the object of a profile.
const maxProfile = pack.MaxValue + 4 + cipher.Overhead

// profile gives what PutProfile has kept, nil when there is none.
func (s *Store) profile(ctx context.Context, id string) ([]byte, error) {
	b := make([]byte, 64<<10)
	n, info, err := s.b.Get(ctx, profileDir+id, b, 0)
	if bucket.ClassOf(err) == bucket.NotFound {
		return nil, nil
	}
	if err == nil && info.Size > maxProfile {
		err = fmt.Errorf("a profile of %d bytes", info.Size)
	}
	if err != nil {
		return nil, err
	}
	if b = b[:n]; int64(n) < info.Size {
		b = make([]byte, info.Size)
		if n, _, err = s.b.Get(ctx, profileDir+id, b, 0); err != nil {
			return nil, err
		}
		b = b[:n]
	}
	if c := s.o.Cipher; c != nil {
		if b, err = c.Open(profilePurpose(id), b); err != nil {
			return nil, err
		}
	}
	if len(b) < 4 || crc32c.Checksum(b[4:]) != binary.LittleEndian.Uint32(b) {
		return nil, fmt.Errorf("the profile of %s: wrong checksum", id)
	}
	return b[4:], nil
}

// learnedSoon reads the profile of a checkpoint, and the hot set that belongs to it, while its list is read. take has
// to be called: it gives them to a node that has the checkpoint and none. Without a profile there it asks for nothing
// else.
func (s *Store) learnedSoon(ctx context.Context, id string) (take func(n Node)) {
	var profile, hot []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if profile, err = s.profile(ctx, id); err == nil && len(profile) > 0 {
			hot, err = s.hotList(ctx, id, crc32c.Checksum(profile))
		}
	}()
	return func(n Node) {
		<-done
		if _, ierr := n.Info(id); ierr != nil {
			return // it was not pulled
		}
		if len(profile) > 0 {
			has, perr := n.Profile(id)
			if fault.ClassOf(perr) == fault.NotFound {
				has, perr = profile, n.SetProfile(id, profile)
			}
			if perr == nil && hot != nil && bytes.Equal(has, profile) {
				perr = n.PullHot(ctx, id, s.id, bytes.NewReader(hot))
			}
			err = errors.Join(err, perr)
		}
		if err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("what was learned of a checkpoint is in the remote store and not used", "checkpoint", id,
				"err", err)
		}
	}
}

// SweepLearned deletes the profiles and removes the hot sets of checkpoints that do not stand any more. The packs of
// the latter are left to the collector.
func (s *Store) SweepLearned(ctx context.Context) error {
	const op = "gc"
	var profiles []string
	for o, err := range bucket.All(ctx, s.b, profileDir) {
		if err != nil {
			return Classify(op, err)
		}
		profiles = append(profiles, strings.TrimPrefix(o.Key, profileDir))
	}
	hot, err := s.c.AllBeside(ctx)
	if err != nil {
		return Classify(op, err)
	}
	if len(profiles)+len(hot) == 0 {
		return nil
	}
	list, err := s.List(ctx)
	if err != nil {
		return err
	}
	stands := map[string]bool{}
	for _, e := range list {
		stands[e.ID] = true
	}
	for _, id := range profiles {
		if stands[id] {
			continue
		}
		if err := s.b.Delete(ctx, profileDir+id, bucket.Cond{}); err != nil {
			return Classify(op, err)
		}
	}
	for _, id := range hot {
		if stands[id] {
			continue
		}
		if err := s.c.Remove(ctx, catalog.Beside(id)); err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return Classify(op, err)
		}
	}
	return nil
}
