package index

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// chunkUse is what accounting knows of one chunk. Half of its id tells chunks apart: a collision would need 2^64 of them.
type chunkUse struct {
	first   int32 // the checkpoint that named it first, and whether another did
	last    int32
	many    bool
	covered int64 // bytes of files of the first that it makes up
	len     uint32
	stored  uint32
}

type shortID [16]byte

// List gives all checkpoints with exact byte counts, oldest first. One that cannot be counted has its Damage set, and the others' Unique counts what they may
// share with it.
func (s *Store) List(ctx context.Context) ([]roots.Info, error) {
	list, _, err := s.account(ctx)
	return list, err
}

// account walks all manifests once.
func (s *Store) account(ctx context.Context) ([]roots.Info, map[shortID]*chunkUse, error) {
	list, err := s.roots.Names(ctx)
	if err != nil {
		return nil, nil, err
	}
	uses := map[shortID]*chunkUse{}
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
					u = &chunkUse{first: int32(i), last: -1, len: c.Len, stored: c.Stored}
					uses[shortID(c.ID[:16])] = u
				}
				if u.first == int32(i) {
					u.covered += covered[ci]
				} else {
					u.many = true
				}
				if u.last != int32(i) {
					u.last = int32(i)
					list[i].Stored += int64(c.Stored)
				}
			}
			return nil
		}
		err := s.walkSegments(ctx, r, pb, segments, fail)
		if err == nil {
			inline[i], err = s.inlineBytes(r, pb)
		}
		if errors.Is(err, errRemoved) || err != nil && s.roots.IsGone(r) {
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

// inlineBytes gives how many bytes of a checkpoint lie in its table of files.
func (s *Store) inlineBytes(r *roots.Root, pb *manifestpb.Checkpoint) (int64, error) {
	c, err := s.load(r, pb)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range c.entries {
		n += int64(len(e.Inline))
	}
	return n, nil
}

// Usage gives the whole store's accounting.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
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
	dry, err := s.GC(ctx, GCOptions{DryRun: true})
	if err != nil && fault.ClassOf(err) != fault.Corrupt { // damage is told by the list
		return u, err
	}
	u.Reclaimable = dry.Reclaimable
	packs, err := s.chunks.Packs.Packs()
	if err != nil {
		return u, fault.Classify("usage", err)
	}
	u.Packs = len(packs)
	if u.Disk, err = diskUsage(s.dir); err != nil {
		return u, fault.Classify("usage", err)
	}
	if u.Stored > 0 {
		u.DedupeRatio = float64(u.Logical) / float64(u.Stored)
	}
	return u, nil
}

// diskUsage gives the bytes that a folder occupies, as du does.
func diskUsage(dir string) (int64, error) {
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

// Diff compares two sealed checkpoints file by file, by the content of their chunks: bytes count as shared wherever they lie in the other checkpoint.
func (s *Store) Diff(ctx context.Context, a, b string) ([]FileDiff, error) {
	ca, err := s.Checkpoint(a)
	if err != nil {
		return nil, err
	}
	cb, err := s.Checkpoint(b)
	if err != nil {
		return nil, err
	}
	inA, err := ca.chunks(ctx)
	if err != nil {
		return nil, err
	}
	inB, err := cb.chunks(ctx)
	if err != nil {
		return nil, err
	}
	var out []FileDiff
	for _, e := range cb.infos {
		if e.Mode.IsRegular() {
			d, err := cb.diff(e, inA)
			if err != nil {
				return nil, err
			}
			d.SizeA, d.SizeB = -1, e.Size
			if i := ca.find(e.Path); i >= 0 && ca.infos[i].Mode.IsRegular() {
				d.SizeA = ca.infos[i].Size
			}
			out = append(out, d)
		}
	}
	for _, e := range ca.infos {
		if i := cb.find(e.Path); e.Mode.IsRegular() && (i < 0 || !cb.infos[i].Mode.IsRegular()) {
			d, err := ca.diff(e, inB)
			if err != nil {
				return nil, err
			}
			d.SizeA, d.SizeB = e.Size, -1
			out = append(out, d)
		}
	}
	return out, nil
}

// chunks gives the ids a checkpoint uses, and stands for the files whose content is inline by the id of that.
func (c *Checkpoint) chunks(ctx context.Context) (map[chunk.ID]bool, error) {
	ids := map[chunk.ID]bool{}
	for _, e := range c.entries {
		if len(e.Inline) > 0 {
			ids[chunk.Sum(e.Inline)] = true
		}
	}
	err := c.s.walkSegments(ctx, c.r, c.s.roots.Record(c.r), func(_ *manifestpb.Entry, seg *manifest.Segment) error {
		for _, r := range seg.Chunks {
			ids[r.ID] = true
		}
		return nil
	}, func(file string, off int64, err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: "diff", Checkpoint: c.name, File: file, Offset: off, Err: err, Hint: fault.RepairHint(c.s.dir)}
	})
	return ids, err
}

// diff counts how much of a file lies in chunks of others.
func (c *Checkpoint) diff(e FileInfo, others map[chunk.ID]bool) (FileDiff, error) {
	d := FileDiff{Path: e.Path}
	f, err := c.Open(e.Path)
	if err != nil {
		return d, fmt.Errorf("diff: %w", err)
	}
	defer f.Close()
	err = f.walk(0, e.Size, func(x stretch) bool {
		switch {
		case x.inline != nil && others[chunk.Sum(x.inline)], x.c != nil && others[x.c.ID]:
			d.Shared += x.n
		case x.zero():
			d.Zero += x.n
		default:
			d.Unique += x.n
		}
		return true
	})
	return d, err
}
