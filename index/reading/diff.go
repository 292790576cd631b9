package reading

import (
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// FileDiff says what one file of two checkpoints has in common. Bytes are counted by chunk content, wherever it
// lies in the other checkpoint.
type FileDiff struct {
	Path   string `json:"path"`
	SizeA  int64  `json:"size_a"` // -1: not in A
	SizeB  int64  `json:"size_b"` // -1: not in B
	Shared int64  `json:"shared"` // bytes of B's file (A's when B lacks it) whose chunks A (B) has in any file
	Zero   int64  `json:"zero"`
	Unique int64  `json:"unique"`
}

// Diff compares two sealed checkpoints file by file, by the content of their chunks: bytes count as shared wherever
// they lie in the other checkpoint.
func (s *Reader) Diff(ctx context.Context, a, b string) ([]FileDiff, error) {
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
			ids[c.s.chunks.Packs.Coder().Sum(e.Inline)] = true
		}
	}
	err := c.s.WalkSegments(ctx, c.r, c.s.roots.Record(c.r), func(_ *manifestpb.Entry, seg *manifest.Segment) error {
		for _, r := range seg.Chunks {
			ids[r.ID] = true
		}
		return nil
	}, func(file string, off int64, err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: "diff", Checkpoint: c.name, File: file, Offset: off, Err: err,
			Hint: fault.RepairHint(c.s.o.Dir)}
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
		case x.inline != nil && others[c.s.chunks.Packs.Coder().Sum(x.inline)], x.c != nil && others[x.c.ID]:
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
