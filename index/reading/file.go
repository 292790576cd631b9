package reading

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Checkpoint is a sealed checkpoint. It is immutable and safe for concurrent use; it needs no closing.
type Checkpoint struct {
	s       *Reader
	r       *roots.Root
	name    string
	entries []*manifestpb.Entry // sorted by path
	infos   []FileInfo          // parallel
}

// load reads the table of files of a checkpoint.
func (s *Reader) load(r *roots.Root, pb *manifestpb.Checkpoint) (*Checkpoint, error) {
	c := &Checkpoint{s: s, r: r, name: pb.Name}
	var table manifest.Table
	for part := range int(pb.Parts) {
		payload, err := s.Part(manifest.TableKey(pb.Id, part))
		var entries []*manifestpb.Entry
		if err == nil {
			entries, err = manifest.DecodeEntries(payload)
		}
		if err == nil {
			err = table.Add(entries)
		}
		if err != nil {
			if s.roots.IsGone(r) {
				return nil, roots.NotFound("open checkpoint", pb.Name)
			}
			return nil, &fault.Error{Class: fault.Corrupt, Op: "open checkpoint", Checkpoint: pb.Name,
				File: fmt.Sprintf("table of files, part %d", part), Err: err, Hint: fault.RepairHint(s.o.Dir)}
		}
	}
	c.entries = table.Entries
	c.infos = make([]FileInfo, len(c.entries))
	parent := ""
	if _, above := s.roots.Parent(r); above != nil {
		parent = above.Name
	}
	for i, e := range c.entries {
		kind := fs.FileMode(0)
		switch e.Type {
		case manifestpb.Entry_DIRECTORY:
			kind = fs.ModeDir
		case manifestpb.Entry_SYMLINK:
			kind = fs.ModeSymlink
		}
		c.infos[i] = FileInfo{Path: e.Path, Mode: kind | fs.FileMode(e.Perm).Perm(), Size: e.Size,
			ModTime: time.Unix(0, e.MtimeNs), Target: e.Target, Zero: e.Zero}
		if kind == fs.ModeSymlink {
			c.infos[i].Target = Relinked(e.Path, e.Target, parent)
			c.infos[i].Size = int64(len(c.infos[i].Target))
		}
	}
	return c, nil
}

// Info describes the checkpoint as Names does.
func (c *Checkpoint) Info() roots.Info {
	return c.s.roots.Info(c.r)
}

// Entries gives every file, directory and symlink, sorted by path. The caller must not change it.
func (c *Checkpoint) Entries() []FileInfo { return c.infos }

// Keep has the checkpoint stay in the store until release is called, which may be called again: meanwhile it cannot be
// removed, nor can those that it builds on. Class NotFound when it is gone.
func (c *Checkpoint) Keep() (release func(), err error) { return c.s.roots.Keep(c.r) }

func (c *Checkpoint) find(p string) int {
	i := sort.Search(len(c.infos), func(i int) bool { return c.infos[i].Path >= p })
	if i < len(c.infos) && c.infos[i].Path == p {
		return i
	}
	return -1
}

// Stat gives one entry; path "." is the root directory. Class NotFound.
func (c *Checkpoint) Stat(p string) (FileInfo, error) {
	if p == "." {
		return FileInfo{Path: ".", Mode: fs.ModeDir | 0o755, ModTime: c.Info().SealedAt}, nil
	}
	if i := c.find(p); i >= 0 {
		return c.infos[i], nil
	}
	return FileInfo{}, &fault.Error{Class: fault.NotFound, Op: "stat", Checkpoint: c.name, File: p,
		Err: errors.New("no such file")}
}

// Open opens a regular file for reading. Close it: an open file keeps gc from taking its chunks after Remove.
func (c *Checkpoint) Open(p string) (*File, error) {
	i := c.find(p)
	if i < 0 {
		return nil, &fault.Error{Class: fault.NotFound, Op: "open", Checkpoint: c.name, File: p,
			Err: errors.New("no such file")}
	}
	if !c.infos[i].Mode.IsRegular() {
		return nil, &fault.Error{Class: fault.Invalid, Op: "open", Checkpoint: c.name, File: p,
			Err: errors.New("not a regular file")}
	}
	if !c.s.roots.OpenFile(c.r) {
		return nil, roots.NotFound("open", c.name)
	}
	return &File{c: c, e: c.entries[i], info: c.infos[i]}, nil
}

// File is an open regular file of a sealed checkpoint, safe for concurrent use.
type File struct {
	c    *Checkpoint
	e    *manifestpb.Entry
	info FileInfo
	once sync.Once
	past atomic.Bool
}

// Uncached tells that the caller keeps what it reads: packs are read past the page cache. The mount does, whose
// files the kernel caches.
func (f *File) Uncached() { f.past.Store(true) }

// Info describes the file; Size gives its length in bytes.
func (f *File) Info() FileInfo { return f.info }
func (f *File) Size() int64    { return f.e.Size }

// Close ends the use of the file.
func (f *File) Close() error {
	var err error
	f.once.Do(func() { err = f.c.s.roots.CloseFile(f.c.r) })
	return err
}

// fail classifies what kept the bytes at off from being read.
func (f *File) fail(off int64, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f.c.s.Counts.Errors.Add(1)
	e := fault.Classify("read", err).(*fault.Error)
	hint := "see how far the damage goes with: gpucr-fs verify " + f.c.s.o.Dir
	switch {
	case e.Class == fault.NoSpace:
	case e.Class == fault.Unreachable, keys.Lacks(err): // it tells nothing of the bytes
		hint = e.Hint
	default:
		e.Class = fault.Corrupt
	}
	return &fault.Error{Class: e.Class, Op: "read", Checkpoint: f.c.name, File: f.e.Path, Offset: off, Err: err,
		Hint: hint}
}

// segment gives the segment that holds off.
func (f *File) segment(off int64) (*segment, error) {
	i := sort.Search(len(f.e.Segments), func(i int) bool { return f.e.Segments[i] > off }) - 1
	if i < 0 {
		return nil, fmt.Errorf("%w: no segment at %d", keys.ErrDamaged, off)
	}
	seg, err := f.c.s.segment(manifest.SegmentKey(f.c.r.ID, f.e.Number, f.e.Segments[i]))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if seg.Start != f.e.Segments[i] || off >= seg.Start+seg.Len {
		return nil, fmt.Errorf("%w: manifest has nothing at %d", keys.ErrDamaged, off)
	}
	return seg, nil
}

// stretch is n bytes of a file, from byte at on, that have one source.
type stretch struct {
	at, n  int64
	c      *manifest.ChunkRef // nil for zeros and inline bytes
	off    int64              // where in the chunk's content it begins
	loc    pack.Loc           // of the chunk; zero unless it has been looked up
	inline []byte             // the bytes themselves, when the manifest has them
}

// zero reports whether the bytes are zeros that nothing is stored for.
func (x stretch) zero() bool { return x.c == nil && x.inline == nil }

// walk calls fn for what covers [off, end), clipped to it, until it returns false.
func (f *File) walk(off, end int64, fn func(stretch) bool) error {
	if len(f.e.Inline) > 0 && off < end {
		fn(stretch{at: off, n: end - off, inline: f.e.Inline[off:end]})
		return nil
	}
	for off < end {
		seg, err := f.segment(off)
		if err != nil {
			return f.fail(off, err)
		}
		for i := seg.Find(off - seg.Start); i < len(seg.Runs) && off < end; i++ {
			r := seg.Runs[i]
			skip := off - seg.Start - r.Start
			x := stretch{at: off, n: min(r.Len-skip, end-off)}
			if r.Chunk != manifest.ZeroRun {
				x.c, x.off, x.loc = &seg.Chunks[r.Chunk], int64(r.Off)+skip, f.c.s.where(seg, r.Chunk)
			}
			if !fn(x) {
				return nil
			}
			off += x.n
		}
	}
	return nil
}

// Extents calls yield for the runs that cover [off, off+n), in order, clipped to it and to the file.
func (f *File) Extents(off, n int64, yield func(Extent) bool) error {
	return f.walk(off, min(off+n, f.e.Size), func(x stretch) bool {
		out := Extent{Off: x.at, Len: x.n, ChunkOff: x.off, Zero: x.zero()}
		if x.c != nil {
			out.ID = x.c.ID
		}
		return yield(out)
	})
}

// ReadAt reads as io.ReaderAt. Unreadable content is a Class Corrupt error naming checkpoint, file and offset, a lack
// of memory or descriptors one of class Other; never wrong bytes, never an early EOF.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, &fault.Error{Class: fault.Invalid, Op: "read", Checkpoint: f.c.name, File: f.e.Path,
			Err: errors.New("negative offset")}
	}
	// In steps, so that a huge read doesn't hold all of its chunks at once.
	n := 0
	for n < len(p) && off < f.e.Size {
		sl, err := f.Read(context.Background(), off, min(len(p)-n, 4<<20))
		if err != nil {
			return n, err
		}
		for _, b := range sl.Buffers() {
			n += copy(p[n:], b)
		}
		off += int64(sl.Len())
		sl.Release()
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// zeroBytes is what zero runs are answered from. It is never written: its pages are all the kernel's zero page.
var zeroBytes [1 << 20]byte

// Read gives n bytes at off (fewer only at the end of the file) without copying. Release it, once, when its buffers
// are no longer used.
func (f *File) Read(ctx context.Context, off int64, n int) (*Slices, error) {
	begin := time.Now()
	end := min(off+int64(n), f.e.Size)
	sl := &Slices{s: f.c.s}
	if off < 0 || off >= end {
		return sl, nil
	}
	type piece struct {
		stretch
		e *entry // of the chunk
	}
	pieces := make([]piece, 0, 16)
	var fetch []fetch
	err := f.walk(off, end, func(x stretch) bool {
		p := piece{stretch: x}
		if x.c != nil {
			if k := len(pieces) - 1; k >= 0 && pieces[k].e != nil && pieces[k].e.id == x.c.ID &&
				pieces[k].c.Len == x.c.Len {
				p.e = pieces[k].e
			} else {
				e, owner := sl.s.cache.acquire(x.c.ID)
				sl.held = append(sl.held, e)
				p.e = e
				if owner {
					fetch = append(fetch, newFetch(e, x.c, x.loc))
				} else {
					sl.s.Counts.Hits.Add(1)
				}
			}
		}
		pieces = append(pieces, p)
		return true
	})
	hit := len(fetch) == 0
	sl.s.fetch(fetch, f.past.Load()) // also after an error: others may wait for what we own
	if err != nil {
		sl.Release()
		return nil, err
	}
	for _, p := range pieces {
		switch {
		case p.inline != nil:
			sl.add(p.inline)
		case p.e == nil:
			for left := p.n; left > 0; left -= min(left, int64(len(zeroBytes))) {
				sl.add(zeroBytes[:min(left, int64(len(zeroBytes)))])
			}
		default:
			data, err := p.e.content(ctx, p.c.Len)
			if err != nil {
				sl.Release()
				return nil, f.fail(p.at, err)
			}
			sl.add(data[p.off : p.off+p.n])
		}
	}
	sl.s.Counts.Read.Add(int64(sl.n))
	if sl.s.o.OnRead != nil {
		sl.s.o.OnRead(time.Since(begin), int64(sl.n), hit)
	}
	return sl, nil
}

// Slices are borrowed, read-only buffers.
type Slices struct {
	s    *Reader
	held []*entry
	bufs [][]byte
	n    int
}

func (sl *Slices) add(b []byte) {
	sl.bufs = append(sl.bufs, b)
	sl.n += len(b)
}

// Buffers gives the bytes in order; Len how many they are.
func (sl *Slices) Buffers() [][]byte { return sl.bufs }
func (sl *Slices) Len() int          { return sl.n }

// Release gives the buffers back.
func (sl *Slices) Release() {
	for _, e := range sl.held {
		sl.s.cache.release(e)
	}
	sl.held, sl.bufs = nil, nil
}

// fetch is a chunk this reader owns the fetching of.
type fetch struct {
	e    *entry
	want uint32 // length of its content, by the manifest
	loc  pack.Loc
	err  error
}

// newFetch fetches c into e; loc is where it was found to be, zero when it has not been looked up.
func newFetch(e *entry, c *manifest.ChunkRef, loc pack.Loc) fetch {
	return fetch{e: e, want: c.Len, loc: loc}
}

// MaxRead bounds what is read from a pack at once.
const MaxRead = 4 << 20

// fetch reads chunks into the cache, those that lie side by side with one system call.
func (s *Reader) fetch(list []fetch, past bool) {
	for i := range list {
		f := &list[i]
		f.loc, f.err = s.chunks.WhereIs(f.e.id, f.want, f.loc)
	}
	s.Hooks.Located.Run()
	for len(list) > 0 {
		n, bytes := 1, list[0].loc.Slot()
		for n < len(list) && list[n-1].err == nil && list[n].err == nil && list[n].loc.Pack == list[0].loc.Pack &&
			list[n].loc.Offset() == list[n-1].loc.Offset()+list[n-1].loc.Slot() && bytes+list[n].loc.Slot() <= MaxRead {
			bytes += list[n].loc.Slot()
			n++
		}
		s.fetchRun(list[:n], past)
		list = list[n:]
	}
}

func (s *Reader) fetchRun(run []fetch, past bool) {
	slots := make([]pack.Chunk, 0, len(run))
	bufs := make([][]byte, 0, len(run))
	for i := range run {
		if run[i].err == nil {
			var b []byte
			b, run[i].err = s.chunks.Arena.Get(int(run[i].loc.Slot()))
			if run[i].err == nil {
				slots, bufs = append(slots, pack.Chunk{ID: run[i].e.id, Loc: run[i].loc}), append(bufs, b)
				continue
			}
		}
		s.cache.fill(run[i].e, nil, run[i].err)
	}
	errs := s.chunks.ReadSlots(slots, bufs, past)
	k := 0
	for i := range run {
		f := &run[i]
		if f.err != nil {
			continue
		}
		data, err := bufs[k], errs[k]
		k++
		if err == nil {
			s.Counts.Misses.Add(1)
			s.Counts.Fetched.Add(f.loc.Slot())
			data, err = s.chunks.Decode(f.loc, data)
		}
		if err != nil {
			s.chunks.Arena.Put(data)
			data, err = s.chunks.ReadMoved(f.e.id, f.loc, past, err)
		}
		s.cache.fill(f.e, data, err)
	}
}

// CopyChunk copies content of a chunk from byte off on into p.
func (s *Reader) CopyChunk(c manifest.ChunkRef, off int64, p []byte) error {
	e, owner := s.cache.acquire(c.ID)
	defer s.cache.release(e)
	if owner {
		s.fetch([]fetch{newFetch(e, &c, pack.Loc{})}, false)
	}
	data, err := e.content(context.Background(), c.Len)
	if err != nil {
		return fault.Classify("read", err)
	}
	copy(p, data[off:])
	return nil
}

// Checkpoint finds a sealed checkpoint by name, tag, or unique prefix (at least 4 digits) of its ID, in this order.
// Class NotFound.
func (s *Reader) Checkpoint(ref string) (*Checkpoint, error) {
	r, pb, err := s.roots.Sealed("open checkpoint", ref)
	if err != nil {
		return nil, err
	}
	return s.load(r, pb)
}

// Latest is the checkpoint sealed last. Class NotFound in a store without any.
func (s *Reader) Latest() (*Checkpoint, error) {
	r, pb, err := s.roots.Latest()
	if err != nil {
		return nil, err
	}
	return s.load(r, pb)
}
