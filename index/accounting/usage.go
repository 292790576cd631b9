package accounting

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Books tell what checkpoints and the whole store take.
type Books struct {
	dir       string
	chunks    *chunks.Store
	roots     *roots.Set
	reading   *reading.Reader
	collector Collector
}

// Collector knows what could be given back.
type Collector interface {
	// Reclaimable gives the bytes of disk that nothing uses. Damage that it meets is no error.
	Reclaimable(ctx context.Context) (int64, error)
}

// New gives the books of the store in a folder.
func New(dir string, c *chunks.Store, s *roots.Set, r *reading.Reader, g Collector) *Books {
	return &Books{dir: dir, chunks: c, roots: s, reading: r, collector: g}
}

// Usage is the whole store's accounting.
type Usage struct {
	Checkpoints []roots.Info `json:"checkpoints"`
	Logical     int64        `json:"logical"`      // sum over checkpoints
	Zero        int64        `json:"zero"`         // of which zero runs
	Distinct    int64        `json:"distinct"`     // bytes of distinct live chunks before compression
	Stored      int64        `json:"stored"`       // what those occupy in packs
	Disk        int64        `json:"disk"`         // what the store's folder occupies on disk, with index and journals
	Reclaimable int64        `json:"reclaimable"`  // what gc would give back now
	Chunks      int64        `json:"chunks"`       // distinct live chunks
	Packs       int          `json:"packs"`        // pack files
	DedupeRatio float64      `json:"dedupe_ratio"` // Logical over Stored
	Held        []Held       `json:"held"`         // by place in Checkpoints
}

// Held are the bytes in packs of the chunks that a checkpoint was the first to have, by how many checkpoints have them
// now. Each chunk counts once in a store.
type Held struct {
	Only int64 `json:"only"` // this checkpoint alone: they are free when it goes
	Two  int64 `json:"two"`
	Few  int64 `json:"few"`  // 3 to 9
	Many int64 `json:"many"` // 10 and more
}

// Sum is all of it.
func (h Held) Sum() int64 { return h.Only + h.Two + h.Few + h.Many }

func (h *Held) add(c *chunkUse) {
	switch n := int64(c.stored); {
	case c.users == 1:
		h.Only += n
	case c.users == 2:
		h.Two += n
	case c.users < 10:
		h.Few += n
	default:
		h.Many += n
	}
}

// chunkUse is what accounting knows of one chunk. Half of its id tells chunks apart: a collision would need 2^64 of
// them.
type chunkUse struct {
	first   int32 // the checkpoint that named it first
	last    int32 // the one that named it last
	users   int32 // how many name it
	going   int32 // of them those that Frees is asked about
	covered int64 // bytes of files of the first that it makes up
	len     uint32
	stored  uint32
}

type shortID [16]byte

// List gives all checkpoints with exact byte counts, oldest first. A checkpoint that cannot be counted has its Damage
// set; what others may share with it counts as Unique there.
func (s *Books) List(ctx context.Context) ([]roots.Info, error) {
	w, err := s.account(ctx, nil)
	return slices.DeleteFunc(w.list, func(i roots.Info) bool { return w.gone[i.ID] }), err
}

// slots gives the bytes that the slot of each chunk occupies now: a manifest tells what it was when that was sealed,
// and the chunk may have been stored anew since. What the index cannot tell is left out.
func (s *Books) slots() (map[shortID]uint32, error) {
	out := map[shortID]uint32{}
	err := s.chunks.DB.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
		if err == nil {
			out[shortID(id[:16])] = uint32(loc.Slot())
		}
		return nil
	})
	return out, fault.Classify("list", err)
}

// walk is what one look at all manifests finds.
type walk struct {
	list []roots.Info
	gone map[string]bool // IDs of those in list that were removed meanwhile
	uses map[shortID]*chunkUse
}

// account walks all manifests once. going are the IDs of checkpoints whose uses of a chunk are counted apart.
func (s *Books) account(ctx context.Context, going map[string]bool) (walk, error) {
	list, err := s.roots.Names(ctx)
	if err != nil {
		return walk{}, err
	}
	uses := map[shortID]*chunkUse{}
	slots, err := s.slots()
	if err != nil {
		return walk{}, err
	}
	inline := make([]int64, len(list))
	gone := map[string]bool{} // removed meanwhile
	for i := range list {
		if list[i].State != roots.Sealed {
			continue
		}
		r, pb := s.roots.ByID(list[i].ID)
		if r == nil {
			gone[list[i].ID] = true
			continue
		}
		fail := func(file string, off int64, err error) error {
			return &fault.Error{Class: fault.Corrupt, Op: "list", Checkpoint: list[i].Name, File: file, Offset: off,
				Err: err, Hint: fault.RepairHint(s.dir)}
		}
		var covered []int64
		segments := func(e *manifestpb.Entry, seg *manifest.Segment) error {
			covered = append(covered[:0], make([]int64, len(seg.Chunks))...)
			for _, run := range seg.Runs {
				if run.Chunk != manifest.ZeroRun {
					covered[run.Chunk] += run.Len
				}
			}
			for ci, c := range seg.Chunks {
				u := uses[shortID(c.ID[:16])]
				if u == nil {
					stored, ok := slots[shortID(c.ID[:16])]
					if !ok {
						stored = c.Stored
					}
					u = &chunkUse{first: int32(i), last: -1, len: c.Len, stored: stored}
					uses[shortID(c.ID[:16])] = u
				}
				if u.first == int32(i) {
					u.covered += covered[ci]
				}
				if u.last != int32(i) {
					u.last = int32(i)
					u.users++
					if going[list[i].ID] {
						u.going++
					}
					list[i].Stored += int64(u.stored)
				}
			}
			return nil
		}
		err := s.reading.WalkSegments(ctx, r, pb, segments, fail)
		if err == nil {
			inline[i], err = s.reading.InlineBytes(r, pb)
		}
		if errors.Is(err, reading.ErrRemoved) || err != nil && s.roots.IsGone(r) {
			gone[list[i].ID] = true
			continue
		}
		if fault.ClassOf(err) == fault.Corrupt {
			list[i].Damage = err.Error()
			err = nil
		}
		if err != nil {
			return walk{}, err
		}
	}
	for _, u := range uses {
		if u.users == 1 {
			list[u.first].Unique += u.covered
		}
	}
	for i := range list {
		switch {
		case list[i].Damage != "":
			list[i].Unique, list[i].Shared, list[i].Stored = -1, -1, -1
		case list[i].State == roots.Sealed:
			list[i].Unique += inline[i]
			list[i].Shared = list[i].Logical - list[i].Zero - list[i].Unique
		}
	}
	return walk{list, gone, uses}, nil
}

// Frees gives the bytes in packs that nothing would use any more if the checkpoints with these IDs were removed: what
// the next gc gives back, but for what it leaves in packs that are nearly full. IDs that the store does not have free
// nothing.
func (s *Books) Frees(ctx context.Context, ids []string) (n int64, err error) {
	going := make(map[string]bool, len(ids))
	for _, id := range ids {
		going[id] = true
	}
	w, err := s.account(ctx, going)
	for _, u := range w.uses {
		if u.users == u.going {
			n += int64(u.stored)
		}
	}
	return n, err
}

// Usage gives the whole store's accounting. What could be given back is found beside the walk over the manifests: each
// is a walk of its own, and neither needs the other.
func (s *Books) Usage(ctx context.Context) (Usage, error) {
	ctx, cancel := context.WithCancel(ctx)
	var reclaimable int64
	var rerr error
	var collecting sync.WaitGroup
	collecting.Go(func() { reclaimable, rerr = s.collector.Reclaimable(ctx) })
	all, err := s.account(ctx, nil)
	if err != nil {
		cancel()
	}
	collecting.Wait()
	cancel()
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Reclaimable: reclaimable}
	held := make([]Held, len(all.list))
	for _, c := range all.uses {
		u.Chunks++
		u.Distinct += int64(c.len)
		u.Stored += int64(c.stored)
		held[c.first].add(c)
	}
	for i, c := range all.list {
		if all.gone[c.ID] {
			continue
		}
		u.Checkpoints, u.Held = append(u.Checkpoints, c), append(u.Held, held[i])
		u.Logical += c.Logical
		u.Zero += c.Zero
	}
	if rerr != nil {
		return u, rerr
	}
	packs, err := s.chunks.Packs.Packs()
	if err != nil {
		return u, fault.Classify("usage", err)
	}
	u.Packs = len(packs)
	if u.Disk, err = DiskUsage(s.dir); err != nil {
		return u, fault.Classify("usage", err)
	}
	if u.Stored > 0 {
		u.DedupeRatio = float64(u.Logical) / float64(u.Stored)
	}
	return u, nil
}

// DiskUsage gives the bytes that a folder occupies, as du does.
func DiskUsage(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil // Badger drops files as it works
			}
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil {
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}
