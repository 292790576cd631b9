package remote

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/repack"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/upload"
)

// repacking is the name under which a run of Repack has its draft: one run at a time in a bucket, unless one stands
// still for so long that it counts as abandoned. No checkpoint has this id.
var repacking = catalog.Beside("0000000000000000")

// RepackOptions of a run.
type RepackOptions struct {
	// Holds refuses a slot, padding included, that does not hold what a chunk's location and id say.
	Holds func(c pack.Chunk, slot []byte) error
	// Most bounds what is read and written, in bytes; 0: nothing is done.
	Most int64
	// Full is what earlier runs have found to be in use; see [repack.Options].
	Full map[string]uint64
	// DryRun looks and changes nothing.
	DryRun bool
}

// Repack copies what is in use of packs that are less than half in use; see package repack. The old packs stay until
// collectors have waited Patience.Removed.
func (s *Store) Repack(ctx context.Context, o RepackOptions) (repack.Report, error) {
	var d *catalog.Draft
	stop := func() {}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := repack.Run(work, repack.Options{
		Catalog: s.c, Store: s.id, Coder: s.o.Cipher, Holds: o.Holds, Most: o.Most, Full: o.Full, DryRun: o.DryRun,
		Logger: s.o.Logger, List: s.listPack, Relisted: s.relisted,
		Begin: func(context.Context) (_ *catalog.Draft, err error) {
			if d, err = s.begin(ctx, repacking); err == nil {
				stop = touching(work, d, touchEvery, cancel)
			}
			return d, err
		},
	})
	cause := context.Cause(work)
	cancel(nil)
	stop()
	if d != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
		defer cancel()
		if d.Abort(ctx) == nil { // else the next run does it, or a collector
			s.o.Pushes.Ended(repacking)
		}
	}
	if err != nil && cause != nil {
		err = cause
	}
	return res, Classify("repack", err)
}

// listPack names the pack that is the list object of a sealed root, and the first record there.
func (s *Store) listPack(r catalog.Record) (list catalog.Pack, first string, err error) {
	e, err := s.entryOf(r)
	if err != nil {
		return catalog.Pack{}, "", err
	}
	list, err = lastOf(r, e)
	return list, firstOf(r, e), err
}

// relisted gives the meta of a root with another list. What a later version says in it stays.
func (s *Store) relisted(r catalog.Record, list string) ([]byte, error) {
	meta, err := s.metaOf(r)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(meta, &fields); err != nil {
		return nil, entryError(r.Name, err)
	}
	if fields["list"], err = json.Marshal(list); err != nil {
		return nil, err
	}
	if meta, err = json.Marshal(fields); err == nil && s.o.Cipher != nil {
		meta = s.o.Cipher.Seal(rootPurpose(r.Name), meta)
	}
	return meta, err
}

// Mover is the store of a machine that may have checkpoints of the remote store.
type Mover interface {
	Uploader(bucket [16]byte) *upload.Uploader
	Info(ref string) (roots.Info, error)
	Knows(name object.Name) bool
}

// Follow tells a node where the chunks lie of its checkpoints that were repacked, or removed and pushed anew. It reads
// each root that has changed since it looked last, and the lists of those that were repacked, which another draft than
// theirs has written, or that name packs of which the node knows nothing. What it could not see it looks at again next
// time. So it does with repacked ones that the node has not got: a pull under way may bring them by the older list.
func (s *Store) Follow(ctx context.Context, n Mover) error {
	const op = "look where chunks have been moved"
	s.following.Lock()
	defer s.following.Unlock()
	u := n.Uploader(s.id)
	fresh := map[string]string{}
	same := func(key, etag string) bool {
		fresh[key] = etag
		return s.followed[key] == etag
	}
	for r, err := range s.c.Unlike(ctx, same) {
		if errors.Is(err, catalog.ErrCorrupt) || errors.Is(err, catalog.ErrVersion) {
			continue // List tells of it
		}
		if err != nil {
			return Classify(op, err)
		}
		e, err := s.entryOf(r)
		if r.State != catalog.Sealed || err != nil || len(r.Packs) == 0 {
			continue
		}
		repacked := !strings.HasPrefix(e.List, r.Nonce)
		if !repacked && !isNews(n.Knows, r.Packs[:len(r.Packs)-1], map[object.Name]bool{}) {
			continue
		}
		if _, err := n.Info(e.ID); err != nil {
			if repacked {
				delete(fresh, catalog.RootKey(r.Name))
			}
			continue
		}
		err = s.withList(ctx, r.Name, func(list object.Source) error { return u.Relearn(ctx, list) })
		if err != nil {
			delete(fresh, catalog.RootKey(r.Name))
		}
		if class := fault.ClassOf(err); err != nil && class != fault.NotFound && class != fault.Corrupt {
			return err
		}
	}
	s.followed = fresh
	return nil
}
