package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
)

// Repair rebuilds the index of a store that no process has open from the journals beside its packs. Where a journal is damaged or gone it takes what the old index and
// journals put aside before still tell, and writes a new one; the damaged one is put aside, for it may be mended yet. The old index is kept until the new one is complete.
func Repair(ctx context.Context, dir string, o Options) (RepairResult, error) {
	o.setStorage()
	config, err := loadConfig(o.Storage, dir)
	again, noCopy := readConfigCopy(o.Storage, dir)
	damaged := fault.ClassOf(err) == fault.Corrupt
	if damaged && noCopy == nil {
		config, err = again, nil
	}
	if err != nil {
		return RepairResult{}, err
	}
	if err := o.Validate(); err != nil {
		return RepairResult{}, err
	}
	o.setDefaults(config)
	if err := checkLayout(dir); err != nil {
		return RepairResult{}, err
	}
	lock, err := lockStore(ctx, o.Storage, dir)
	if err != nil {
		return RepairResult{}, err
	}
	defer lock.Close()
	if damaged || noCopy != nil {
		if err := config.save(o.Storage, dir); err != nil {
			return RepairResult{}, fault.Classify("repair", err)
		}
		o.Logger.Info("config.json and its copy were made anew", "damaged", damaged)
	}
	return rebuildIndex(ctx, dir, config, o)
}

// rebuildIndex is Repair for who holds the lock.
func rebuildIndex(ctx context.Context, dir string, config Config, o Options) (RepairResult, error) {
	r := rebuild{dir: dir, o: o, at: dir, old: filepath.Join(dir, chunks.IndexFolder), fresh: filepath.Join(dir, chunks.IndexFolder+".new"), keys: map[string]uint64{}, suspect: map[uint32]*suspect{}}
	if err := r.build(ctx, config); err != nil {
		return r.res, fault.Classify("repair", err)
	}
	if err := keys.Swap(r.old, r.fresh); err != nil {
		return r.res, fault.Classify("repair", err)
	}
	return r.res, r.check(ctx)
}

type rebuild struct {
	dir        string
	o          Options
	at         string // a folder on the file system that fresh is on
	old, fresh string
	s          *Store   // over the new index; never handed out
	was        *keys.DB // the old index; nil where there is none that can be opened
	knows      bool     // all records of the old index could be read
	suspect    map[uint32]*suspect
	keys       map[string]uint64 // metadata keys found in journals, with the highest sequence
	res        RepairResult
}

func (r *rebuild) build(ctx context.Context, config Config) error {
	if err := os.RemoveAll(r.fresh); err != nil {
		return err
	}
	d, err := keys.Open(r.fresh, r.o.Logger, keys.Room{Dir: r.at, Floor: r.o.FreeFloor}, r.o.Tuning.keys())
	if err != nil {
		return err
	}
	set, err := pack.Open(filepath.Join(r.dir, chunks.PacksFolder), pack.Options{Store: config.identity(), PackSize: config.PackSize, FreeFloor: r.o.FreeFloor, Logger: r.o.Logger, Storage: r.o.Storage})
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if r.s, err = newStore(r.dir, config, r.o, d, set); err != nil {
		return errors.Join(err, set.Close(), d.Close())
	}
	err = r.read(ctx)
	if err == nil {
		err = d.Sync()
	}
	if err = errors.Join(err, r.s.stop()); err == nil && d.Cut() {
		err = d.NoRoom("")
	}
	if err == nil {
		err = keys.DeclareSound(r.fresh)
	}
	return err
}

// read fills the new index from the journals, and from the old index where they fall short.
func (r *rebuild) read(ctx context.Context) (err error) {
	if r.o.ReadOnly {
		return r.journals(ctx)
	}
	if _, err := os.Stat(filepath.Join(r.old, "MANIFEST")); err == nil {
		if r.was, err = keys.Open(r.old, r.o.Logger, keys.Room{Dir: r.dir, Floor: r.o.FreeFloor}, r.o.Tuning.keys()); err != nil {
			r.o.Logger.Warn("the old index cannot help", "err", err)
			r.was = nil
		}
	}
	if r.was != nil {
		r.knows = keys.IsSound(r.old)
		defer func() { err = errors.Join(err, r.was.Close()) }()
	}
	if err := r.journals(ctx); err != nil {
		return err
	}
	return r.salvage(ctx)
}

// journals applies all journals.
func (r *rebuild) journals(ctx context.Context) error {
	packs, err := r.s.chunks.Packs.Packs()
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
	orphans, err := r.s.chunks.Packs.Orphans()
	if err != nil {
		return err
	}
	for _, n := range orphans {
		r.o.Logger.Error("a journal is gone", "journal", pack.JournalName(n))
		r.suspect[n] = newSuspect()
		r.suspect[n].orphan = true
		r.suspect[n].told = r.oldMark(n) > 0
	}
	aside, err := r.s.chunks.Packs.AllAside()
	if err != nil {
		return err
	}
	for n, names := range aside {
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

func (r *rebuild) journal(n uint32) error {
	s := r.s
	mark := r.oldMark(n)
	aside, err := s.chunks.Packs.Aside(n)
	if err != nil {
		return err
	}
	dead, listed := map[uint32]bool{}, map[uint32]bool{} // by page: a commit that was tried again lists its slots twice
	end, bad, err := s.chunks.Packs.Read(n, 0, func(rec pack.Record) error {
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
	if len(listed) > 0 && !s.chunks.Packs.Exists(n) {
		r.res.Lost = append(r.res.Lost, fmt.Sprintf("pack %s: %v: the file is gone", pack.Name(n), pack.ErrCorrupt))
	}
	for _, d := range bad {
		r.o.Logger.Error("a journal is damaged", "journal", pack.JournalName(n), "at", d.Off, "bytes", d.Len, "what", d.Text)
	}
	// What a crash left half written begins where the old index had read to, or behind it. Without that index it could as well be damage.
	torn := len(bad) == 1 && bad[0].Off == end && mark > 0 && mark <= end
	// For reading only, what can be read has to do: nothing could be put aside.
	if (len(bad) > 0 && !torn || mark > end || len(aside) > 0) && !r.o.ReadOnly {
		p := newSuspect()
		p.dead, p.damaged = dead, len(bad) > 0 || mark > end
		p.told = mark > 0
		for _, d := range bad {
			p.told = p.told && d.Off+d.Len <= mark
		}
		r.suspect[n] = p
	}
	b := s.chunks.DB.Batch()
	_, _, err = s.chunks.Packs.Read(n, 0, func(rec pack.Record) error {
		if kv := rec.KV; kv != nil {
			r.keys[kv.Key] = max(r.keys[kv.Key], kv.Seq)
		} else if r.suspect[n] != nil || rec.Chunk != nil && dead[rec.Chunk.Loc.Page] {
			return nil
		}
		return s.chunks.Apply(b, rec)
	})
	if err != nil {
		return errors.Join(err, b.Flush())
	}
	if err := s.chunks.Packs.SyncJournal(n); err != nil {
		return errors.Join(err, b.Flush())
	}
	b.SetMark(n, end)
	return b.Flush()
}

// check opens the rebuilt store and counts what is there and what is not.
func (r *rebuild) check(ctx context.Context) error {
	config, err := loadConfig(r.o.Storage, r.dir)
	if err != nil {
		return err
	}
	s, err := openLocked(ctx, r.dir, config, r.o, nil)
	if err != nil {
		return err
	}
	defer s.stop()
	if r.res.SetAside, err = s.chunks.SetAside(); err != nil {
		return err
	}
	l := reading.NewLocator(s.chunks)
	roots, pbs := s.roots.Snapshot()
	for i, root := range roots {
		pb := pbs[i]
		whole := true
		lost := func(file string, off int64, err error) error {
			if whole {
				r.res.Lost = append(r.res.Lost, fmt.Sprintf("checkpoint %s, file %s: %v", pb.Name, file, err))
			}
			whole = false
			return nil
		}
		err := s.reading.WalkSegments(ctx, root, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
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
		r.res.Checkpoints++
	}
	r.res.Chunks, err = s.chunks.DB.CountChunks()
	return err
}
