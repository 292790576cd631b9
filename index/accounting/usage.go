package accounting

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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
	Disk        int64        `json:"disk"`         // bytes the store folder occupies on disk, index and journals included
	Reclaimable int64        `json:"reclaimable"`  // what gc would give back now
	Chunks      int64        `json:"chunks"`       // distinct live chunks
	Packs       int          `json:"packs"`        // pack files
	DedupeRatio float64      `json:"dedupe_ratio"` // Logical over Stored
}

// chunkUse is what accounting knows of one chunk. Half of its id tells chunks apart: a collision would need 2^64 of
// them.
type chunkUse struct {
	first   int32 // the checkpoint that named it first, and whether another did
	last    int32
	many    bool
	covered int64 // bytes of files of the first that it makes up
	len     uint32
	stored  uint32
}

type shortID [16]byte

// List gives all checkpoints with exact byte counts, oldest first. One that cannot be counted has its Damage set,
// and the others' Unique counts what they may share with it.
func (s *Books) List(ctx context.Context) ([]roots.Info, error) {
	list, _, err := s.account(ctx)
	return list, err
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

// account walks all manifests once.
func (s *Books) account(ctx context.Context) ([]roots.Info, map[shortID]*chunkUse, error) {
	list, err := s.roots.Names(ctx)
	if err != nil {
		return nil, nil, err
	}
	uses := map[shortID]*chunkUse{}
	slots, err := s.slots()
	if err != nil {
		return nil, nil, err
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
			return &fault.Error{Class: fault.Corrupt, Op: "list", Checkpoint: list[i].Name, File: file, Offset: off, Err: err, Hint: fault.RepairHint(s.dir)}
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
				} else {
					u.many = true
				}
				if u.last != int32(i) {
					u.last = int32(i)
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
			return nil, nil, err
		}
	}
	for _, u := range uses {
		if !u.many {
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
	return slices.DeleteFunc(list, func(i roots.Info) bool { return gone[i.ID] }), uses, nil
}

// Usage gives the whole store's accounting.
func (s *Books) Usage(ctx context.Context) (Usage, error) {
	list, uses, err := s.account(ctx)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Checkpoints: list}
	for _, i := range list {
		u.Logical += i.Logical
		u.Zero += i.Zero
	}
	for _, c := range uses {
		u.Chunks++
		u.Distinct += int64(c.len)
		u.Stored += int64(c.stored)
	}
	if u.Reclaimable, err = s.collector.Reclaimable(ctx); err != nil {
		return u, err
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
