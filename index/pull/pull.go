// Package pull makes checkpoints of a bucket checkpoints of a store: their records are copied, and it is noted where
// their chunks lie. Payload is fetched when it is read (package chunks).
//
// A checkpoint that is being pulled has its name, and nobody sees it. Its records are committed as they come, the root
// last, once every chunk is known to lie somewhere. What a crash leaves is an incomplete checkpoint, which gc removes.
package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/roots"
)

const op = "pull checkpoint"

// commitBytes is how many bytes of records go into one commit: it bounds memory.
const commitBytes = 16 << 20

// Puller pulls checkpoints into one store.
type Puller struct {
	chunks  *chunks.Store
	roots   *roots.Set
	reading *reading.Reader
}

// New gives a puller.
func New(c *chunks.Store, r *roots.Set, rd *reading.Reader) *Puller { return &Puller{c, r, rd} }

// Pull makes a checkpoint of the bucket with this identity one of the store, under a name of its own and without its
// tags. list is its list object, in which the root record is the first one. Class Exists when the name is taken or the
// checkpoint is in the store already, Corrupt when the list does not tell all that the checkpoint needs. Nothing of it
// is left then but what is known of packs.
func (p *Puller) Pull(ctx context.Context, name string, bucket [16]byte, list object.Source) (roots.Info, error) {
	if err := p.chunks.MayWrite(op); err != nil {
		return roots.Info{}, err
	}
	if err := roots.ValidName(name); err != nil {
		return roots.Info{}, err
	}
	l := pulling{learner: learner{note: p.note, ctx: ctx}, p: p, name: name, bucket: bucket}
	err := object.Decode(list, bucket, object.Visitor{Pack: l.pack, Chunk: l.chunk, Record: l.record,
		Coder: p.chunks.Packs.Coder()})
	var info roots.Info
	if err == nil {
		info, err = l.seal(ctx)
	}
	if err != nil {
		if l.r != nil {
			err = errors.Join(err, p.roots.Abort(l.r, l.tried, nil))
		}
		if errors.Is(err, object.ErrReplaced) {
			err = &fault.Error{Class: fault.Corrupt, Op: op, Err: err,
				Hint: "sync it anew where it was dumped, after gpucr-fs rm --remote"}
		}
		return roots.Info{}, fault.Classify(op, err)
	}
	return info, nil
}

// note notes where chunks lie in the bucket.
func (p *Puller) note(packs []object.PackRef, list []pack.Chunk) error {
	return p.chunks.Distant.Learn(packs, list, p.chunks.Commit)
}

// Learn calls note with the places of the chunks of a checkpoint of the bucket with this identity, by its list object,
// some packs at a time: packs[i] is what locations call pack i+1. c decrypts the list; nil: it is not encrypted.
func Learn(
	ctx context.Context, c *cipher.Coder, bucket [16]byte, list object.Source,
	note func(packs []object.PackRef, list []pack.Chunk) error,
) error {
	l := learner{note: note, ctx: ctx}
	err := object.Decode(list, bucket, object.Visitor{Pack: l.pack, Chunk: l.chunk, Coder: c})
	if err == nil {
		err = l.learn()
	}
	return fault.Classify("learn of a checkpoint", err)
}

// pulling is a checkpoint that becomes one of the store as its list is read.
type pulling struct {
	learner
	p      *Puller
	name   string
	bucket [16]byte

	r     *roots.Root            // nil before its root record has come
	pb    *manifestpb.Checkpoint // as it will be sealed
	puts  []chunks.Put
	bytes int
	tried bool // to seal it
}

// Relabel is of roots.Draft: what is being pulled keeps the labels that it has.
func (l *pulling) Relabel(func(*manifestpb.Checkpoint) error) (bool, error) {
	return true, &fault.Error{Class: fault.InUse, Op: "label", Checkpoint: l.name,
		Err: errors.New("the checkpoint is just being pulled"), Hint: "try again"}
}

func (l *pulling) corrupt(file string, off int64, err error) error {
	return &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: l.name, File: file, Offset: off, Err: err}
}

// learnChunks is how many chunks are learned of at once: it bounds memory.
const learnChunks = 1 << 16

// learner notes where chunks lie as their list is read.
type learner struct {
	note   func(packs []object.PackRef, list []pack.Chunk) error
	ctx    context.Context
	packs  []object.PackRef
	chunks []pack.Chunk // not learned of yet
}

func (l *learner) pack(_ uint32, p object.PackRef) error {
	l.packs = append(l.packs, p)
	return l.ctx.Err()
}

// chunk takes the next chunk of the list. They come pack by pack: what is known of one pack is written once.
func (l *learner) chunk(c pack.Chunk) error {
	if len(l.chunks) >= learnChunks && c.Loc.Pack != l.chunks[len(l.chunks)-1].Loc.Pack {
		if err := l.learn(); err != nil {
			return err
		}
	}
	l.chunks = append(l.chunks, c)
	return nil
}

// learn notes where the chunks that have come lie.
func (l *learner) learn() error {
	if len(l.chunks) == 0 {
		return nil
	}
	first, last := l.chunks[0].Loc.Pack, l.chunks[len(l.chunks)-1].Loc.Pack
	for i := range l.chunks {
		l.chunks[i].Loc.Pack -= first - 1
	}
	err := l.note(l.packs[first-1:last], l.chunks)
	l.chunks = l.chunks[:0]
	return err
}

// record takes the next record of the list.
func (l *pulling) record(kv pack.KV) error {
	if l.r == nil {
		if err := l.begin(kv); err != nil {
			return err
		}
		return l.learn()
	}
	var err error
	switch {
	case manifest.OwnerOf(kv.Key) != l.pb.Id:
		err = fmt.Errorf("the record %.60q is not of checkpoint %s", kv.Key, l.pb.Id)
	case strings.HasPrefix(kv.Key, manifest.TablePrefix):
		_, err = manifest.DecodeEntries(kv.Value)
	case strings.HasPrefix(kv.Key, manifest.SegmentPrefix):
		_, err = manifest.DecodeSegment(kv.Value)
	case kv.Key == manifest.HotKey(l.pb.Id):
		_, _, err = manifest.DecodeHot(kv.Value)
	case kv.Key == manifest.ProfileKey(l.pb.Id): // means something to others
	default:
		err = fmt.Errorf("an unknown record %.60q", kv.Key)
	}
	if err != nil {
		return l.corrupt("", 0, err)
	}
	l.puts = append(l.puts, chunks.Put{Key: kv.Key, Payload: append([]byte(nil), kv.Value...)})
	if l.bytes += len(kv.Value); l.bytes < commitBytes {
		return nil
	}
	return l.commit()
}

func (l *pulling) commit() error {
	puts := l.puts
	l.puts, l.bytes = nil, 0
	return l.p.chunks.Commit(puts)
}

// begin enters the checkpoint with this root record.
func (l *pulling) begin(kv pack.KV) error {
	pb, err := manifest.DecodeCheckpoint(kv.Value)
	if err == nil && (!pb.Sealed || kv.Key != manifest.RootKey(pb.Id)) {
		err = errors.New("the list does not begin with a sealed checkpoint")
	}
	if err != nil {
		return l.corrupt("", 0, err)
	}
	if _, old := l.p.roots.ByID(pb.Id); old != nil {
		return &fault.Error{Class: fault.Exists, Op: op, Checkpoint: l.name,
			Err: fmt.Errorf("this checkpoint is in the store already, as %s", old.Name)}
	}
	if pb.ParentId != "" {
		if _, parent := l.p.roots.ByID(pb.ParentId); parent == nil || !parent.Sealed {
			return &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: l.name,
				Err: fmt.Errorf("it needs checkpoint %s, which is not in the store", pb.ParentId)}
		}
	}
	pb.Name, pb.Tags, pb.Bucket = l.name, nil, l.bucket[:]
	open := proto.CloneOf(pb)
	open.Sealed = false
	payload, err := manifest.EncodeCheckpoint(open)
	if err != nil {
		return err
	}
	r := roots.NewRoot(open)
	if err := l.p.roots.Begin(op, r, l); err != nil {
		return err
	}
	l.r, l.pb = r, pb
	return l.p.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(pb.Id), Payload: payload}})
}

// seal makes the checkpoint one of the store, durably, if all that it needs is known: its records, and where its chunks
// lie.
func (l *pulling) seal(ctx context.Context) (roots.Info, error) {
	if l.r == nil {
		return roots.Info{}, l.corrupt("", 0, errors.New("a list without a checkpoint"))
	}
	if err := l.commit(); err != nil {
		return roots.Info{}, err
	}
	err := l.p.reading.WalkSegments(ctx, l.r, l.pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
		for _, c := range seg.Chunks {
			loc, err := l.p.chunks.Locate(c.ID)
			if err == nil && loc.Raw != c.Len {
				err = fmt.Errorf("a chunk of %d bytes, not %d", loc.Raw, c.Len)
			}
			if err != nil {
				return l.corrupt(e.Path, seg.Start, err)
			}
		}
		return nil
	}, l.corrupt)
	if err != nil {
		return roots.Info{}, err
	}
	l.tried = true
	change := l.p.roots.BeginSealing(l.r, l.pb)
	defer change.End()
	puts, err := change.Puts()
	if err == nil {
		err = l.p.chunks.Commit(puts)
	}
	if err != nil {
		return roots.Info{}, err
	}
	info := change.Done(0)
	l.p.roots.Announce(l.name)
	return info, nil
}
