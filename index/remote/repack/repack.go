// Package repack copies what is in use of the packs of a bucket that are less than half in use, so that they can go.
//
// A pack stands while any checkpoint needs a part of it. When checkpoints are removed, what others share with them is
// left in packs of which the rest is waste. A run looks for such packs (look.go), copies what is in use into new packs
// (copy.go), and gives each checkpoint that needs one of the old packs a list which names the new places (change.go;
// package catalog tells why nothing is lost). It deletes nothing: the old packs stay for those who read by an older
// list, and a collector removes them as it removes the packs of a removed checkpoint.
//
// # What it looks at
//
// A pack of which the checkpoint stands that it was written for is in use. Of the others the lists of the checkpoints
// that need them tell how much is. What was found is remembered (Options.Full), by the lists that tell of a pack, so a
// list is not read in every run. Packs that a draft claims or writes are left alone.
//
// # Bounds
//
// A run reads and writes no more than Options.Most bytes, lists included, and begins with the packs of which least is
// in use. Memory: a bit for each page of the packs looked at, one pack object that is gathered and one that is read,
// the places of the chunks that were copied (mostChunks), and the list of one checkpoint at a time (mostList).
package repack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

const (
	// mostPacks is how many packs a run looks at more closely.
	mostPacks = 1 << 16
	// mostChunks is how many chunks a run copies.
	mostChunks = 1 << 20
	// mostList bounds the list objects that are read, in bytes: the packs that a longer one needs stay as they are.
	mostList = 128 << 20
)

// Options of a run. All but Full must be set.
type Options struct {
	Catalog *catalog.Catalog
	Store   [16]byte      // identity of the bucket's store
	Coder   *cipher.Coder // encrypts what the bucket holds; nil: it is not encrypted
	// Holds refuses a slot as it lies in the bucket, padding included, that does not hold what a chunk's location and
	// id say.
	Holds func(c pack.Chunk, slot []byte) error
	// List names the pack that is the list object of a sealed root, and the key of the first record there.
	List func(catalog.Record) (list catalog.Pack, first string, err error)
	// Relisted gives the meta of a root with another list object.
	Relisted func(r catalog.Record, list string) ([]byte, error)
	// Begin begins the draft of the run, which the caller ends. ErrInUse: another run is under way, or was a short
	// while ago.
	Begin func(context.Context) (*catalog.Draft, error)
	// Most bounds what a run reads and writes, in bytes; 0: it does nothing.
	Most int64
	// Full has packs of which at least half was found to be in use, with a sum of the lists that told so. A run reads
	// it and replaces its content; nil: nothing is remembered.
	Full map[string]uint64
	// DryRun looks and changes nothing.
	DryRun bool
	Logger *slog.Logger
}

// Report says what a run did, or in a dry run would do.
type Report struct {
	Packs       int   `json:"packs"`       // that no checkpoint needs any more
	Bytes       int64 `json:"bytes"`       // of these
	Copied      int64 `json:"copied"`      // bytes of the new packs, which stand for them
	Checkpoints int   `json:"checkpoints"` // that have a new list
	Read        int64 `json:"read"`        // bytes that the run has read from the bucket, roots excluded
	Written     int64 `json:"written"`     // bytes that it has written there, roots excluded
	Left        int   `json:"left"`        // packs less than half in use that stay: the bound was reached, or damage
	Busy        bool  `json:"busy"`        // another run is under way
}

// run is one run.
type run struct {
	o       Options
	report  Report
	roots   []*rooted
	suspect map[string]*suspect
	moved   map[chunk.ID]place
	refs    []object.PackRef // new packs; see place
	kept    int64            // bytes of them
}

// rooted is a sealed root that lists packs which are looked at.
type rooted struct {
	catalog.Record
	list  catalog.Pack
	first string // key of its first record
	packs []*suspect
	stays bool // its list cannot be dealt with
}

// suspect is a pack that may be less than half in use.
type suspect struct {
	catalog.Pack
	roots  []*rooted
	used   pagesOf // slots in use, by their first pages
	alive  int64   // bytes of them
	chosen bool
	stays  bool // it is not to be dealt with
}

// place is where a chunk was copied to.
type place struct {
	pack int // in run.refs
	loc  pack.Loc
}

// Run repacks. When single checkpoints or packs cannot be dealt with it goes on with the others. The error is of the
// bucket, or ctx's; what was done before stands.
func Run(ctx context.Context, o Options) (Report, error) {
	r := &run{o: o, suspect: map[string]*suspect{}, moved: map[chunk.ID]place{}}
	if o.Most <= 0 {
		return r.report, nil
	}
	err := r.look(ctx)
	if err == nil {
		err = r.weigh(ctx)
	}
	var chosen []*suspect
	if err == nil {
		chosen = r.choose()
	}
	if err != nil || len(chosen) == 0 {
		return r.report, err
	}
	if o.DryRun {
		for _, s := range chosen {
			r.report.Packs++
			r.report.Bytes += s.Size
			r.report.Copied += s.alive
		}
		return r.report, nil
	}
	d, err := o.Begin(ctx)
	if errors.Is(err, catalog.ErrInUse) || errors.Is(err, catalog.ErrExists) {
		r.report.Busy, r.report.Left = true, r.report.Left+len(chosen)
		return r.report, nil
	}
	if err != nil {
		return r.report, err
	}
	err = r.move(ctx, d, chosen)
	return r.report, err
}

// move copies what is in use of the chosen packs, and has the checkpoints use that.
func (r *run) move(ctx context.Context, d *catalog.Draft, chosen []*suspect) error {
	if err := r.copy(ctx, d, chosen); err != nil {
		return err
	}
	changed := map[*rooted]bool{}
	for _, s := range chosen {
		for _, k := range s.roots {
			if _, tried := changed[k]; tried || s.stays {
				continue
			}
			err := r.change(ctx, d, k)
			changed[k] = err == nil
			switch {
			case err == nil:
				r.report.Checkpoints++
			case ctx.Err() != nil || !passes(err):
				return err
			default: // a later run finds it again
				r.o.Logger.Warn("a checkpoint of the remote store keeps its packs for now", "checkpoint", k.Name,
					"err", err)
			}
		}
	}
	var gone []catalog.Pack
	for _, s := range chosen {
		free := !s.stays
		for _, k := range s.roots {
			free = free && changed[k]
		}
		if !free {
			r.report.Left++
			continue
		}
		r.report.Packs++
		r.report.Bytes += s.Size
		gone = append(gone, s.Pack)
	}
	r.report.Copied = r.kept
	return r.o.Catalog.Retire(ctx, gone)
}

// reader reads a pack for a checkpoint that lists it, and counts.
type reader struct {
	ctx  context.Context
	k    *catalog.Checkpoint
	p    catalog.Pack
	read *int64
}

func (r *reader) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.k.ReadAt(r.ctx, r.p, b, off)
	*r.read += int64(n)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

// find gives a checkpoint as it is now. The error is ErrMoved where that is not as it was looked at.
func (r *run) find(ctx context.Context, k *rooted) (*catalog.Checkpoint, error) {
	now, err := r.o.Catalog.Find(ctx, k.Name)
	if err == nil && now.Revision != k.Revision {
		err = fmt.Errorf("%s: %w", k.Name, catalog.ErrMoved)
	}
	return now, err
}

// passes says whether an error concerns one checkpoint or pack: it has changed meanwhile, is damaged, or too large.
func passes(err error) bool {
	return errors.Is(err, catalog.ErrMoved) || errors.Is(err, catalog.ErrRemoved) ||
		errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrTaken) ||
		errors.Is(err, catalog.ErrCorrupt) || errors.Is(err, catalog.ErrInvalid) || errors.Is(err, pack.ErrCorrupt) ||
		errors.Is(err, pack.ErrVersion) || errors.Is(err, pack.ErrTooLarge) || bucket.ClassOf(err) == bucket.Corrupt
}
