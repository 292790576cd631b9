package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Result says what a rebuild of the index brought back.
type Result struct {
	Checkpoints int           `json:"checkpoints"`
	Chunks      int64         `json:"chunks"`
	Packs       int           `json:"packs"`
	Lost        []string      `json:"lost"`                // checkpoints that could not be brought back, and why
	SetAside    []aside.Entry `json:"set_aside,omitempty"` // what is kept without being accounted for
}

// Options say what is built from what.
type Options struct {
	Dir   string // of the store
	Fresh string // the folder of the new index; what is in it goes
	Room  string // a folder on the file system that Fresh is on
	Old   string // the folder of the old index; what is not in the journals is taken from there
	// ReadOnly leaves journals and packs as they are, and the old index alone: what can be read has to do.
	ReadOnly bool

	Logger    *slog.Logger
	FreeFloor int64
	Index     keys.Tuning
	Packs     pack.Options
	Chunks    chunks.Options // but for the arena, which each build has for its own
}

// Build makes an index from the journals, and from the old index where they fall short.
func Build(ctx context.Context, o Options) (Result, error) {
	r := rebuild{o: o, keys: map[string]uint64{}, suspect: map[uint32]*suspect{}}
	err := r.build(ctx)
	return r.res, err
}

// rebuild is the state of one build.
type rebuild struct {
	o       Options
	s       *chunks.Store // over the new index
	was     *keys.DB      // the old index; nil where there is none that can be opened
	knows   bool          // all records of the old index could be read
	suspect map[uint32]*suspect
	opened  bool              // a frame of a journal was read
	locked  bool              // a whole frame of a journal does not decrypt
	keys    map[string]uint64 // metadata keys found in journals, with the highest sequence
	res     Result
}

func (r *rebuild) build(ctx context.Context) error {
	if err := os.RemoveAll(r.o.Fresh); err != nil {
		return err
	}
	d, err := keys.Open(r.o.Fresh, r.o.Logger, keys.Room{Dir: r.o.Room, Floor: r.o.FreeFloor}, r.o.Index)
	if err != nil {
		return err
	}
	set, err := pack.Open(filepath.Join(r.o.Dir, chunks.PacksFolder), r.o.Packs)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if r.s, err = chunks.New(d, set, r.o.Chunks); err != nil {
		return errors.Join(err, set.Close(), d.Close())
	}
	err = r.read(ctx)
	if err == nil {
		err = d.Sync()
	}
	r.s.Stop()
	if err = errors.Join(err, r.s.Close()); err == nil && d.Cut() {
		err = d.NoRoom("")
	}
	if err == nil {
		err = keys.DeclareSound(r.o.Fresh)
	}
	return err
}

// read fills the new index from the journals, and from the old index where they fall short.
func (r *rebuild) read(ctx context.Context) (err error) {
	if r.o.ReadOnly {
		return errors.Join(r.journals(ctx), r.s.Distant.Load())
	}
	if _, err := os.Stat(filepath.Join(r.o.Old, "MANIFEST")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // the old index may be sound, and is removed when the new one is there
	} else if err == nil {
		r.was, err = keys.Open(r.o.Old, r.o.Logger, keys.Room{Dir: r.o.Dir, Floor: r.o.FreeFloor}, r.o.Index)
		if errors.Is(err, pack.ErrNoSpace) || keys.Lacks(err) {
			return err // it may be read when there is room again
		}
		if err != nil {
			r.o.Logger.Warn("the old index cannot help", "err", err)
			r.was = nil
		}
	}
	if r.was != nil {
		defer func() { err = errors.Join(err, r.was.Close()) }()
		if r.knows, err = keys.IsSound(r.o.Old); err != nil {
			return err
		}
	}
	if err := r.journals(ctx); err != nil {
		return err
	}
	if err := r.salvage(ctx); err != nil {
		return err
	}
	return errors.Join(r.countOn(), r.s.Distant.Load())
}

// countOn keeps the highest sequence that the old index noted: a journal that is put back may still have that record.
func (r *rebuild) countOn() error {
	var seq uint64
	if r.was != nil {
		seq, _ = r.was.Seq() // what it cannot tell the journals have to
	}
	b := r.s.DB.Batch()
	b.Later(seq)
	return b.Flush()
}

// journals applies all journals.
func (r *rebuild) journals(ctx context.Context) error {
	packs, err := r.s.Packs.Packs()
	if err != nil {
		return err
	}
	r.res.Packs = len(packs)
	for _, n := range packs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.journal(n); err != nil {
			return fmt.Errorf("journal %s: %w", pack.JournalName(n), err)
		}
	}
	if r.locked && !r.opened {
		return &fault.Error{Class: fault.Locked, Op: "repair", File: r.o.Dir,
			Err:  errors.New("its key is not that of its journals"),
			Hint: "put back the file keyring of this store from a backup, and remove keyring.copy"}
	}
	orphans, err := r.s.Packs.Orphans()
	if err != nil {
		return err
	}
	for _, n := range orphans {
		r.o.Logger.Error("a journal is gone", "journal", pack.JournalName(n))
		r.suspect[n] = newSuspect()
		r.suspect[n].orphan = true
		r.suspect[n].told = r.oldMark(n) > 0
	}
	aside, err := r.s.Packs.AllAside()
	if err != nil {
		return err
	}
	for n, names := range aside {
		if r.suspect[n] == nil && !slices.Contains(packs, n) {
			// A pack that holds keys alone is an empty file, no orphan: a repair was about to write its journal anew.
			r.suspect[n] = newSuspect()
			r.suspect[n].orphan = true
			r.suspect[n].told = r.oldMark(n) > 0
		}
		if r.suspect[n] != nil {
			r.suspect[n].aside = names
		}
	}
	return nil
}

// oldMark gives how far the old index had applied the journal of pack n; 0 where that is not known.
func (r *rebuild) oldMark(n uint32) int64 {
	if r.was == nil {
		return 0
	}
	mark, err := r.was.Mark(n)
	if err != nil {
		r.o.Logger.Warn("the old index cannot tell how far it had read", "journal", pack.JournalName(n), "err", err)
	}
	return mark
}

// oldDurable gives how far the old index knew the journal of pack n to be on the disk; 0 where that is not known.
func (r *rebuild) oldDurable(n uint32) int64 {
	if r.was == nil {
		return 0
	}
	end, _ := r.was.Durable(n) // oldMark says what is wrong
	return end
}

func (r *rebuild) journal(n uint32) error {
	s := r.s
	mark, durable := r.oldMark(n), r.oldDurable(n)
	aside, err := s.Packs.Aside(n)
	if err != nil {
		return err
	}
	dead, listed := map[uint32]bool{}, map[uint32]bool{} // by page: a commit that was tried again lists its slots twice
	end, bad, err := s.Packs.Read(n, 0, func(rec pack.Record) error {
		switch {
		case rec.Dead != nil:
			dead[rec.Dead.Loc.Page] = true
		case rec.Chunk != nil:
			listed[rec.Chunk.Loc.Page] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	maps.DeleteFunc(listed, func(page uint32, _ bool) bool { return dead[page] })
	if len(listed) > 0 && !s.Packs.Exists(n) {
		r.res.Lost = append(r.res.Lost, fmt.Sprintf("pack %s: %v: the file is gone", pack.Name(n), pack.ErrCorrupt))
	}
	r.opened = r.opened || end > 0
	for _, d := range bad {
		r.locked = r.locked || d.Locked
		r.o.Logger.Error("a journal is damaged", "journal", pack.JournalName(n), "at", d.Off, "bytes", d.Len,
			"what", d.Text)
	}
	// What a crash left half written begins where the journal is known to have been on the disk to, or behind it.
	// Without the old index it could as well be damage.
	torn := len(bad) == 1 && bad[0].Off == end && durable > 0 && durable <= end
	// For reading only, what can be read has to do: nothing could be put aside.
	if (len(bad) > 0 && !torn || durable > end || len(aside) > 0) && !r.o.ReadOnly {
		p := newSuspect()
		p.dead, p.damaged = dead, len(bad) > 0 || durable > end
		p.told = mark > 0
		for _, d := range bad {
			p.told = p.told && d.Off+d.Len <= mark
		}
		r.suspect[n] = p
	}
	b := s.DB.Batch()
	_, _, err = s.Packs.Read(n, 0, func(rec pack.Record) error {
		if kv := rec.KV; kv != nil {
			r.keys[kv.Key] = max(r.keys[kv.Key], kv.Seq)
		} else if r.suspect[n] != nil || rec.Chunk != nil && dead[rec.Chunk.Loc.Page] {
			return nil
		}
		return s.Apply(b, rec)
	})
	if err != nil {
		return errors.Join(err, b.Flush())
	}
	if err := s.Packs.SyncJournal(n, min(mark, end), end); err != nil {
		return errors.Join(err, b.Flush())
	}
	b.SetMark(n, end)
	return b.Flush()
}

// Count tells what is in the rebuilt store, and what is not.
func (res *Result) Count(ctx context.Context, cs *chunks.Store, rs *roots.Set, rd *reading.Reader) (err error) {
	if res.SetAside, err = cs.Aside.All(); err != nil {
		return err
	}
	l := reading.NewLocator(cs)
	roots, pbs := rs.Snapshot()
	for i, root := range roots {
		pb := pbs[i]
		whole := true
		lost := func(file string, off int64, err error) error {
			if whole {
				res.Lost = append(res.Lost, fmt.Sprintf("checkpoint %s, file %s: %v", pb.Name, file, err))
			}
			whole = false
			return nil
		}
		err := rd.WalkSegments(ctx, root, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for _, c := range seg.Chunks {
				if _, err := l.Locate(c.ID); err != nil {
					return lost(e.Path, seg.Start, err)
				}
			}
			return nil
		}, lost)
		if err != nil {
			return err
		}
		res.Checkpoints++
	}
	res.Chunks, err = cs.DB.CountChunks()
	return err
}
