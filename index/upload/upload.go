// Package upload makes of a sealed checkpoint what a bucket is to hold of it: pack objects with the chunks that the
// bucket lacks, and the list object that tells where all of them are.
//
// Chunks go into pack objects in the order in which the checkpoint uses them, so that who restores it reads runs. Their
// slots are copied as they lie in the store's packs, held against their guard; those of an encrypted store are
// encrypted anew. A chunk of which a place in the bucket
// is known, from an upload of this store or from what others have taken there (package learned), is referred to there.
// Whether that place still stands is for the caller to find out: it is told which packs the checkpoint refers to.
//
// Several pack objects are on their way at once, while the next one is gathered: a connection alone gives a part of
// what a link does. An upload so takes up to 260 MiB of memory, and up to 520 where there are 16 processors or more.
package upload

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/learned"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// packers is how many pack objects are gathered or on their way at once. A third of its time each is gathered, hashed,
// or waits for the server's answer. With few processors, more objects would only wait for one.
var packers = min(8, max(4, runtime.GOMAXPROCS(0)/2))

// earlyPackers is how many while the checkpoint is still being written: what is uploaded then must not hold that up.
var earlyPackers = max(1, min(2, runtime.GOMAXPROCS(0)/2))

// Sink takes pack objects.
type Sink interface {
	// AddPack stores a pack object under a new name, and gives that. b is the caller's again when it returns. Several
	// calls may be under way at once.
	AddPack(ctx context.Context, b []byte) (object.Name, error)
}

// Uploader takes checkpoints of one store to one bucket.
type Uploader struct {
	chunks  *chunks.Store
	roots   *roots.Set
	reading *reading.Reader
	others  *learned.Places
	store   [16]byte // identity of the bucket's store

	// Looked is told of each piece of content that Upload has dealt with, by its bytes; nil: nobody is.
	Looked func(bytes int64)
}

// New gives an uploader.
func New(c *chunks.Store, r *roots.Set, rd *reading.Reader, others *learned.Places, store [16]byte) *Uploader {
	return &Uploader{chunks: c, roots: r, reading: rd, others: others, store: store}
}

// inBucket gives a place where the bucket is known to have a chunk: as the store knows it, or as others have told. may
// says which packs count; nil: all do.
func (u *Uploader) inBucket(id chunk.ID, may func(object.Name) bool) (p object.PackRef, loc pack.Loc, ok bool) {
	if loc, err := u.chunks.DB.DistantLoc(id); err == nil {
		if p, ok := u.chunks.Distant.Pack(loc.Pack); ok && (may == nil || may(p.Name)) {
			return p, loc, true
		}
	}
	return u.others.FindIn(id, may)
}

// Result is what was made of a checkpoint.
type Result struct {
	List  []byte           // its list object
	New   []object.PackRef // packs that were put
	Known []object.PackRef // packs of the bucket that it refers to besides
	Bytes int64            // of the new packs' slots

	list object.List
}

// Begin begins with a checkpoint that is still being written: Add takes chunks of it as they are stored, End the rest.
// ctx ends all of it.
func (u *Uploader) Begin(ctx context.Context, sink Sink) *Upload {
	j := &Upload{u: u, sink: sink, res: &Result{}, numbers: map[object.Name]uint32{}, places: map[chunk.ID]bool{},
		free: make(chan *object.Packer, packers), stands: func(object.Name) bool { return false }}
	for range earlyPackers {
		j.free <- &object.Packer{Coder: j.u.chunks.Packs.Coder()}
	}
	j.puts, j.putting = errgroup.WithContext(ctx)
	return j
}

// Add sees to it that the bucket gets a chunk, unless it is known to have it: whether that place stands is asked at the
// end. After an error only Drop may be called.
func (j *Upload) Add(id chunk.ID) error {
	if _, _, ok := j.u.inBucket(id, nil); ok && !j.places[id] {
		return nil
	}
	return j.add(j.putting, id)
}

// Failed says that something could not be put.
func (j *Upload) Failed() bool { return j.putting.Err() != nil }

// Drop ends what was begun, in place of End. What was put is referred to by nothing.
func (j *Upload) Drop() { _ = j.puts.Wait() }

// Upload is Begin and End.
func (u *Uploader) Upload(ctx context.Context, ref string, sink Sink, stands func(object.Name) bool) (*Result, error) {
	return u.Begin(ctx, sink).End(ctx, ref, stands)
}

// End puts what the bucket lacks of a sealed checkpoint. stands says whether a pack that the bucket is known to have
// may be referred to; nil: all may. When it fails some packs may have been put: nothing refers to them.
func (j *Upload) End(ctx context.Context, ref string, stands func(object.Name) bool) (*Result, error) {
	return j.finish(j.end(ctx, ref, stands))
}

// finish waits for what is on its way, and makes the list. err is what went wrong before.
func (j *Upload) finish(err error) (*Result, error) {
	if perr := j.puts.Wait(); perr != nil { // what walking has met then follows from it
		err = perr
	}
	j.named()
	if err != nil {
		return nil, fault.Classify("upload", err)
	}
	j.list.Coder = j.u.chunks.Packs.Coder()
	if j.res.List, err = j.list.Encode(j.u.store); err != nil {
		return nil, fault.Classify("upload", err)
	}
	j.res.list = object.List{Packs: j.list.Packs, Chunks: j.list.Chunks}
	return j.res, nil
}

func (j *Upload) end(ctx context.Context, ref string, stands func(object.Name) bool) error {
	const op = "upload"
	j.stands = stands
	for range packers - earlyPackers {
		j.free <- &object.Packer{Coder: j.u.chunks.Packs.Coder()}
	}
	u := j.u
	r, pb, err := u.roots.Sealed(op, ref)
	if err != nil {
		return err
	}
	bad := func(file string, off int64, err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: pb.Name, File: file, Offset: off, Err: err}
	}
	j.sizes = &balance{packers: packers, left: pb.Logical - pb.Zero}
	var parts []string
	err = u.reading.WalkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
		parts = append(parts, manifest.SegmentKey(pb.Id, e.Number, seg.Start))
		for _, c := range seg.Chunks {
			if u.Looked != nil {
				u.Looked(int64(c.Len))
			}
			before := j.gathered
			if err := j.add(j.putting, c.ID); err != nil {
				return &fault.Error{Class: fault.ClassOf(err), Op: op, Checkpoint: pb.Name, File: e.Path,
					Offset: seg.Start, Hint: fault.HintOf(err), Err: err}
			}
			j.sizes.saw(int64(c.Len), j.gathered-before)
		}
		return nil
	}, bad)
	if err != nil {
		return err
	}
	j.sizes = nil
	j.put(j.putting)
	if err := u.records(pb, parts, &j.list); err != nil {
		if u.roots.IsGone(r) {
			return roots.NotFound(op, ref)
		}
		return fault.At(op, pb.Name, "", fault.Classify(op, err))
	}
	return j.learnt(j.putting, pb.Id)
}

// Durable notes that the bucket has what r tells: chunks that another checkpoint uses as well are not put again.
func (u *Uploader) Durable(r *Result) error {
	return u.chunks.Distant.Learn(r.list.Packs, r.list.Chunks, u.chunks.Commit)
}

// Relearn notes where the bucket has the chunks of a checkpoint, by its list object. From now on they are read there.
func (u *Uploader) Relearn(ctx context.Context, list object.Source) error {
	var all object.List
	err := object.Decode(list, u.store, object.Visitor{
		Coder: u.chunks.Packs.Coder(),
		Pack:  func(_ uint32, p object.PackRef) error { all.Packs = append(all.Packs, p); return ctx.Err() },
		Chunk: func(c pack.Chunk) error { all.Chunks = append(all.Chunks, c); return nil },
	})
	if err == nil {
		err = u.chunks.Distant.Learn(all.Packs, all.Chunks, u.chunks.Commit)
	}
	return fault.Classify("learn of a checkpoint", err)
}

// Known gives the packs of the bucket that Upload would refer to. may says which packs count; nil: all do.
func (u *Uploader) Known(ctx context.Context, ref string, may func(object.Name) bool) ([]object.PackRef, error) {
	const op = "upload"
	r, pb, err := u.roots.Sealed(op, ref)
	if err != nil {
		return nil, err
	}
	var known []object.PackRef
	seen := map[object.Name]bool{}
	err = u.reading.WalkSegments(ctx, r, pb, func(_ *manifestpb.Entry, seg *manifest.Segment) error {
		for _, c := range seg.Chunks {
			if p, _, ok := u.inBucket(c.ID, may); ok && !seen[p.Name] {
				seen[p.Name] = true
				known = append(known, p)
			}
		}
		return nil
	}, func(string, int64, error) error { return nil }) // Upload tells of damage
	return known, fault.Classify(op, err)
}

// records adds the records of a checkpoint to a list, the root first, then the table of files and these parts of the
// manifest. An iteration over the index would not tell that one is missing.
func (u *Uploader) records(pb *manifestpb.Checkpoint, parts []string, l *object.List) error {
	there := proto.CloneOf(pb)
	there.Bucket = nil
	root, err := manifest.EncodeCheckpoint(there)
	if err != nil {
		return err
	}
	l.Records = append(l.Records, pack.KV{Key: manifest.RootKey(pb.Id), Value: root})
	var all []string
	for part := range int(pb.Parts) {
		all = append(all, manifest.TableKey(pb.Id, part))
	}
	slices.Sort(parts)
	for _, key := range append(all, parts...) {
		payload, err := u.reading.Part(key)
		if err != nil {
			return err
		}
		l.Records = append(l.Records, pack.KV{Key: key, Value: payload})
	}
	return nil
}

// Upload is a checkpoint on its way. One goroutine at a time uses it.
type Upload struct {
	u       *Uploader
	putting context.Context // of puts
	sink    Sink
	stands  func(object.Name) bool
	res     *Result
	list    object.List
	numbers map[object.Name]uint32 // in list
	places  map[chunk.ID]bool      // chunks that are in list, or in packer
	packer  *object.Packer         // gathers the next pack object; nil: nothing is gathered yet
	free    chan *object.Packer    // those that nobody uses
	puts    *errgroup.Group        // pack objects on their way
	sent    []*sent

	gathered int64    // bytes of slots that went into pack objects
	sizes    *balance // of pack objects, while a sealed checkpoint is walked
}

// sent is a pack object on its way, or there.
type sent struct {
	number uint32 // in list
	ref    object.PackRef
}

// number gives the number of a pack in the list.
func (j *Upload) number(p object.PackRef) (n uint32, fresh bool) {
	n, ok := j.numbers[p.Name]
	if !ok {
		j.list.Packs = append(j.list.Packs, p)
		n = uint32(len(j.list.Packs))
		j.numbers[p.Name] = n
	}
	return n, !ok
}

// add sees to it that the bucket has a chunk, and the list tells where.
func (j *Upload) add(ctx context.Context, id chunk.ID) error {
	if j.places[id] {
		return nil
	}
	if j.refer(id) {
		return nil
	}
	loc, slot, err := j.slot(id)
	if err != nil {
		return err
	}
	defer j.u.chunks.Arena.Put(slot)
	return j.pack(ctx, id, loc, slot)
}

// slot gives a chunk's slot as it is stored, in a buffer of the arena. One that cannot be read where it was may have
// been moved since, and its place given back.
func (j *Upload) slot(id chunk.ID) (loc pack.Loc, slot []byte, err error) {
	s := j.u.chunks
	loc, err = s.Locate(id)
	if err != nil {
		return loc, nil, err
	}
	for range chunks.MaxMoves {
		if slot, err = s.Slot(pack.Chunk{ID: id, Loc: loc}, true); err == nil {
			break
		}
		now, lerr := s.Locate(id)
		if lerr != nil || now == loc {
			break
		}
		loc = now
	}
	return loc, slot, err
}

// refer refers to the place where the bucket is known to have a chunk, if there is one. The chunk then counts as dealt
// with, in any case.
func (j *Upload) refer(id chunk.ID) bool {
	j.places[id] = true
	p, loc, ok := j.u.inBucket(id, j.stands)
	if !ok {
		return false
	}
	n, fresh := j.number(p)
	if fresh {
		j.res.Known = append(j.res.Known, p)
	}
	loc.Pack = n
	j.list.Chunks = append(j.list.Chunks, pack.Chunk{ID: id, Loc: loc})
	return true
}

// pack adds a slot to the pack object that is being gathered.
func (j *Upload) pack(ctx context.Context, id chunk.ID, loc pack.Loc, slot []byte) error {
	for range 2 {
		if j.packer == nil {
			select {
			case j.packer = <-j.free:
				j.packer.Reset()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if j.sizes == nil || !j.sizes.full(int64(j.packer.Len())) {
			if _, full := j.packer.Add(id, loc, slot); !full {
				j.gathered += int64(len(slot))
				return nil
			}
		}
		j.put(ctx)
	}
	return fmt.Errorf("a chunk of %d bytes does not fit into a pack object", len(slot))
}

// put puts the pack object that has been gathered on its way, if there is anything in it. The wait for j.puts tells
// what becomes of it.
func (j *Upload) put(ctx context.Context) {
	p := j.packer
	if p == nil || p.Len() == 0 {
		return
	}
	j.packer = nil
	if j.sizes != nil {
		j.sizes.begun++
	}
	j.list.Packs = append(j.list.Packs, object.PackRef{}) // see named
	s := &sent{number: uint32(len(j.list.Packs))}
	j.sent = append(j.sent, s)
	for _, c := range p.Chunks() {
		c.Loc.Pack = s.number
		j.list.Chunks = append(j.list.Chunks, c)
	}
	j.res.Bytes += int64(p.Len())
	j.puts.Go(func() error {
		b, err := p.Finish(j.u.store)
		if err == nil {
			s.ref.Size = int64(len(b))
			s.ref.Name, err = j.sink.AddPack(ctx, b)
		}
		j.free <- p
		return err
	})
}

// named enters the names of the pack objects that were put, which they have since.
func (j *Upload) named() {
	for _, s := range j.sent {
		j.list.Packs[s.number-1] = s.ref
		j.res.New = append(j.res.New, s.ref)
	}
}
