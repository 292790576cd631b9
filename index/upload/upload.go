// Package upload makes of a sealed checkpoint what a bucket is to hold of it: pack objects with the chunks that the
// bucket lacks, and the list object that tells where all of them are.
//
// Chunks go into pack objects in the order in which the checkpoint uses them, so that who restores it reads runs. Their
// slots are copied as they lie in the store's packs, held against their guard. A chunk of which the store knows a place
// in the bucket (chunks.Store.Learn) is referred to there. Whether that place still stands is for the caller to find
// out: it is told which packs the checkpoint refers to.
package upload

import (
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Sink takes pack objects.
type Sink interface {
	// AddPack stores a pack object under a new name, and gives that. b is the caller's again when it returns.
	AddPack(ctx context.Context, b []byte) (object.Name, error)
}

// Uploader takes checkpoints of one store to one bucket.
type Uploader struct {
	chunks  *chunks.Store
	roots   *roots.Set
	reading *reading.Reader
	store   [16]byte // identity of the bucket's store
}

// New gives an uploader.
func New(c *chunks.Store, r *roots.Set, rd *reading.Reader, store [16]byte) *Uploader {
	return &Uploader{chunks: c, roots: r, reading: rd, store: store}
}

// Result is what was made of a checkpoint.
type Result struct {
	ID    string           // of the checkpoint
	List  []byte           // its list object
	New   []object.PackRef // packs that were put
	Known []object.PackRef // packs of the bucket that it refers to besides
	Bytes int64            // of the new packs' slots

	list object.List
}

// Upload puts what the bucket lacks of a sealed checkpoint. stands says whether a pack that the bucket is known to have
// may be referred to; nil: all may. When it fails some packs may have been put: nothing refers to them.
func (u *Uploader) Upload(ctx context.Context, ref string, sink Sink, stands func(object.Name) bool) (*Result, error) {
	const op = "upload"
	r, pb, err := u.roots.Sealed(op, ref)
	if err != nil {
		return nil, err
	}
	j := &job{u: u, sink: sink, stands: stands, res: &Result{ID: pb.Id}, numbers: map[object.Name]uint32{},
		places: map[chunk.ID]bool{}}
	bad := func(file string, off int64, err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: pb.Name, File: file, Offset: off, Err: err}
	}
	err = u.reading.WalkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
		for _, c := range seg.Chunks {
			if err := j.add(ctx, c.ID); err != nil {
				return &fault.Error{Class: fault.ClassOf(err), Op: op, Checkpoint: pb.Name, File: e.Path,
					Offset: seg.Start, Hint: fault.HintOf(err), Err: err}
			}
		}
		return nil
	}, bad)
	if err == nil {
		err = j.put(ctx)
	}
	if err == nil {
		err = u.records(pb, &j.list)
	}
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	if j.res.List, err = j.list.Encode(u.store); err != nil {
		return nil, fault.Classify(op, err)
	}
	j.res.list = object.List{Packs: j.list.Packs, Chunks: j.list.Chunks}
	return j.res, nil
}

// Durable notes that the bucket has what r tells: chunks that another checkpoint uses as well are not put again.
func (u *Uploader) Durable(r *Result) error { return u.chunks.Learn(r.list.Packs, r.list.Chunks) }

// Known gives the packs of the bucket that Upload would refer to.
func (u *Uploader) Known(ctx context.Context, ref string) ([]object.PackRef, error) {
	const op = "upload"
	r, pb, err := u.roots.Sealed(op, ref)
	if err != nil {
		return nil, err
	}
	var known []object.PackRef
	seen := map[object.Name]bool{}
	err = u.reading.WalkSegments(ctx, r, pb, func(_ *manifestpb.Entry, seg *manifest.Segment) error {
		for _, c := range seg.Chunks {
			if loc, err := u.chunks.DB.DistantLoc(c.ID); err == nil {
				if p, ok := u.chunks.Distant.Pack(loc.Pack); ok && !seen[p.Name] {
					seen[p.Name] = true
					known = append(known, p)
				}
			}
		}
		return nil
	}, func(string, int64, error) error { return nil }) // Upload tells of damage
	return known, fault.Classify(op, err)
}

// records adds the records of a checkpoint to a list, the root first.
func (u *Uploader) records(pb *manifestpb.Checkpoint, l *object.List) error {
	root, err := manifest.EncodeCheckpoint(pb)
	if err != nil {
		return err
	}
	l.Records = append(l.Records, pack.KV{Key: manifest.RootKey(pb.Id), Value: root})
	for _, prefix := range []string{manifest.TablePrefix, manifest.SegmentPrefix} {
		err := u.chunks.DB.Metas(prefix+pb.Id+"/", func(key string, _ uint64, payload []byte, err error) error {
			if err == nil {
				l.Records = append(l.Records, pack.KV{Key: key, Value: append([]byte(nil), payload...)})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// job is one upload.
type job struct {
	u       *Uploader
	sink    Sink
	stands  func(object.Name) bool
	res     *Result
	list    object.List
	numbers map[object.Name]uint32 // in list
	places  map[chunk.ID]bool      // chunks that are in list, or in packer
	packer  object.Packer
}

// number gives the number of a pack in the list.
func (j *job) number(p object.PackRef) (n uint32, fresh bool) {
	n, ok := j.numbers[p.Name]
	if !ok {
		j.list.Packs = append(j.list.Packs, p)
		n = uint32(len(j.list.Packs))
		j.numbers[p.Name] = n
	}
	return n, !ok
}

// add sees to it that the bucket has a chunk, and the list tells where.
func (j *job) add(ctx context.Context, id chunk.ID) error {
	if j.places[id] {
		return nil
	}
	j.places[id] = true
	s := j.u.chunks
	if loc, err := s.DB.DistantLoc(id); err == nil {
		if p, ok := s.Distant.Pack(loc.Pack); ok && (j.stands == nil || j.stands(p.Name)) {
			n, fresh := j.number(p)
			if fresh {
				j.res.Known = append(j.res.Known, p)
			}
			loc.Pack = n
			j.list.Chunks = append(j.list.Chunks, pack.Chunk{ID: id, Loc: loc})
			return nil
		}
	}
	loc, err := s.Locate(id)
	if err != nil {
		return err
	}
	slot, err := j.slot(id, loc)
	if err != nil {
		return err
	}
	defer s.Arena.Put(slot)
	if _, full := j.packer.Add(id, loc, slot); !full {
		return nil
	}
	if err := j.put(ctx); err != nil {
		return err
	}
	if _, full := j.packer.Add(id, loc, slot); full {
		return fmt.Errorf("a chunk of %d bytes does not fit into a pack object", len(slot))
	}
	return nil
}

// slot reads a slot, into a buffer of the arena.
func (j *job) slot(id chunk.ID, loc pack.Loc) ([]byte, error) {
	s := j.u.chunks
	buf, err := s.Arena.Get(int(loc.Slot()))
	if err != nil {
		return nil, err
	}
	bufs := [][]byte{buf}
	if err := s.ReadSlots([]pack.Chunk{{ID: id, Loc: loc}}, bufs, true)[0]; err != nil {
		s.Arena.Put(buf)
		return nil, err
	}
	return bufs[0], nil
}

// put puts the pack object that has been gathered, if there is anything in it.
func (j *job) put(ctx context.Context) error {
	if j.packer.Len() == 0 {
		return nil
	}
	placed := j.packer.Chunks()
	j.res.Bytes += int64(j.packer.Len())
	b, err := j.packer.Finish(j.u.store)
	if err != nil {
		return err
	}
	p := object.PackRef{Size: int64(len(b))}
	if p.Name, err = j.sink.AddPack(ctx, b); err != nil {
		return err
	}
	n, _ := j.number(p)
	for _, c := range placed {
		c.Loc.Pack = n
		j.list.Chunks = append(j.list.Chunks, c)
	}
	j.res.New = append(j.res.New, p)
	j.packer.Reset()
	return nil
}
