package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
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

// profileSoon reads the profile of a checkpoint while its list is read. take has to be called: it gives the profile to
// a node that has the checkpoint and none.
func (s *Store) profileSoon(ctx context.Context, id string) (take func(n Node)) {
	var profile []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		profile, err = s.profile(ctx, id)
	}()
	return func(n Node) {
		<-done
		if len(profile) > 0 {
			if _, perr := n.Profile(id); fault.ClassOf(perr) == fault.NotFound {
				err = n.SetProfile(id, profile)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("a profile in the remote store is not used", "checkpoint", id, "err", err)
		}
	}
}

// SweepProfiles deletes the profiles of checkpoints that do not stand any more.
func (s *Store) SweepProfiles(ctx context.Context) error {
	var kept []string
	for o, err := range bucket.All(ctx, s.b, profileDir) {
		if err != nil {
			return Classify("gc", err)
		}
		kept = append(kept, strings.TrimPrefix(o.Key, profileDir))
	}
	if len(kept) == 0 {
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
	for _, id := range kept {
		if stands[id] {
			continue
		}
		if err := s.b.Delete(ctx, profileDir+id, bucket.Cond{}); err != nil {
			return Classify("gc", err)
		}
	}
	return nil
}
