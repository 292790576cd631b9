package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Repair rebuilds the index of a store that no process has open from the journals beside its packs. What an old index still tells goes in where a journal is damaged, and such
// a journal is written anew. The old index is kept until the new one is complete.
func Repair(ctx context.Context, dir string, o Options) (RepairResult, error) {
	config, err := LoadConfig(dir)
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
	lock, err := lockStore(ctx, dir)
	if err != nil {
		return RepairResult{}, err
	}
	defer lock.Close()
	return rebuildIndex(ctx, dir, config, o)
}

// rebuildIndex is Repair for who holds the lock.
func rebuildIndex(ctx context.Context, dir string, config Config, o Options) (RepairResult, error) {
	r := rebuild{dir: dir, o: o, old: filepath.Join(dir, dbName), fresh: filepath.Join(dir, dbName+".new"), keys: map[string]bool{}}
	if err := r.build(ctx, config); err != nil {
		return r.res, classify("repair", err)
	}
	if err := swapIndex(r.old, r.fresh); err != nil {
		return r.res, classify("repair", err)
	}
	return r.res, r.check(ctx)
}

type rebuild struct {
	dir        string
	o          Options
	old, fresh string
	s          *Store // over the new index; never handed out
	packs      []uint32
	damaged    []uint32        // packs whose journal is damaged
	keys       map[string]bool // metadata keys found in journals
	res        RepairResult
}

func (r *rebuild) build(ctx context.Context, config Config) error {
	if err := os.RemoveAll(r.fresh); err != nil {
		return err
	}
	d, err := openDB(r.fresh, r.o.Logger, room{r.dir, r.o.FreeFloor})
	if err != nil {
		return err
	}
	set, err := pack.Open(filepath.Join(r.dir, packsName), pack.Options{Store: config.identity(), PackSize: config.PackSize, FreeFloor: r.o.FreeFloor, Logger: r.o.Logger})
	if err != nil {
		return errors.Join(err, d.close())
	}
	if r.s, err = newStore(r.dir, config, r.o, d, set); err != nil {
		return errors.Join(err, set.Close(), d.close())
	}
	err = r.journals(ctx)
	if err == nil && len(r.damaged) > 0 {
		err = r.salvage(ctx)
	}
	if err == nil {
		err = d.sync()
	}
	if err = errors.Join(err, r.s.stop()); err == nil && d.cut() {
		err = d.noRoom("")
	}
	if err == nil {
		err = declareSound(r.fresh)
	}
	return err
}

// journals applies all journals.
func (r *rebuild) journals(ctx context.Context) error {
	packs, err := r.s.packs.Packs()
	if err != nil {
		return err
	}
	r.packs = packs
	r.res.Packs = len(packs)
	for _, n := range packs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.journal(n); err != nil {
			return fmt.Errorf("journal %s: %w", pack.JournalName(n), err)
		}
	}
	return nil
}

func (r *rebuild) journal(n uint32) error {
	s := r.s
	if _, err := s.packs.Size(n); err != nil {
		r.res.Lost = append(r.res.Lost, err.Error())
	}
	dead, err := s.deadSlots(n, 0)
	if err != nil {
		return err
	}
	b := s.db.batch()
	end, bad, err := s.packs.Read(n, 0, func(rec pack.Record) error {
		if c := rec.Chunk; c != nil && dead[c.Loc.Page] {
			return nil
		}
		if rec.KV != nil {
			r.keys[rec.KV.Key] = true
		}
		return s.apply(b, rec)
	})
	if err != nil {
		return errors.Join(err, b.flush())
	}
	size, err := s.packs.JournalSize(n)
	if err != nil {
		return errors.Join(err, b.flush())
	}
	torn := len(bad) == 1 && bad[0].Off+bad[0].Len == size
	for _, d := range bad {
		r.o.Logger.Error("a journal is damaged", "journal", pack.JournalName(n), "at", d.Off, "bytes", d.Len, "what", d.Text)
	}
	if len(bad) > 0 {
		// The last frame may be a crash's torn write or a damaged one: the old index knows. Rewriting the journal from both serves either way.
		r.damaged = append(r.damaged, n)
		if torn {
			end = size
		}
	}
	b.setMark(n, end)
	return b.flush()
}

// salvage takes over what the old index knows and the damaged journals no longer tell, and writes these journals anew.
func (r *rebuild) salvage(ctx context.Context) error {
	s := r.s
	lostKeys, err := r.readOld(ctx)
	if err != nil {
		r.o.Logger.Warn("the old index cannot help", "err", err)
	}
	byPack := map[uint32][]pack.Chunk{}
	err = s.db.scan([]byte{'c'}, true, func(key, value []byte, err error) error {
		if err != nil {
			return err
		}
		loc, err := pack.DecodeLoc(value)
		if err == nil && slices.Contains(r.damaged, loc.Pack) {
			byPack[loc.Pack] = append(byPack[loc.Pack], pack.Chunk{ID: [32]byte(key[1:]), Loc: loc})
		}
		return err
	})
	if err != nil {
		return err
	}
	for i, n := range r.damaged {
		var kvs []pack.KV
		_, _, err := s.packs.Read(n, 0, func(rec pack.Record) error {
			if rec.KV != nil {
				kv := *rec.KV
				kv.Value = append([]byte(nil), kv.Value...)
				kvs = append(kvs, kv)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if i == 0 {
			kvs = append(kvs, lostKeys...)
		}
		chunks := byPack[n]
		slices.SortFunc(chunks, func(a, b pack.Chunk) int { return int(a.Loc.Page) - int(b.Loc.Page) })
		mark, err := s.packs.RewriteJournal(n, chunks, kvs)
		if err != nil {
			return err
		}
		b := s.db.batch()
		b.setMark(n, mark)
		if err := b.flush(); err != nil {
			return err
		}
		r.o.Logger.Info("wrote a journal anew", "journal", pack.JournalName(n), "chunks", len(chunks), "keys", len(kvs))
	}
	return nil
}

// readOld copies from the old index what the new one lacks, and gives the metadata among it.
func (r *rebuild) readOld(ctx context.Context) (lostKeys []pack.KV, err error) {
	if _, err := os.Stat(filepath.Join(r.old, "MANIFEST")); err != nil {
		return nil, err
	}
	old, err := openDB(r.old, r.o.Logger, room{r.dir, r.o.FreeFloor})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, old.close()) }()
	dead := map[uint32]map[uint32]bool{}
	for _, n := range r.damaged {
		if dead[n], err = r.s.deadSlots(n, 0); err != nil {
			return nil, err
		}
	}
	b := r.s.db.batch()
	err = old.scan([]byte{'c'}, true, func(key, value []byte, err error) error {
		if err != nil || ctx.Err() != nil {
			return ctx.Err() // a damaged record of the old index tells nothing
		}
		loc, err := pack.DecodeLoc(value)
		if err != nil || !slices.Contains(r.damaged, loc.Pack) || dead[loc.Pack][loc.Page] {
			return nil
		}
		if _, err := r.s.db.loc([32]byte(key[1:])); errors.Is(err, errMissing) {
			b.set(slices.Clone(key), slices.Clone(value))
		}
		return nil
	})
	if err == nil {
		err = old.metas("", func(key string, seq uint64, payload []byte, err error) error {
			if err != nil || seq == 0 || r.keys[key] {
				return nil // unreadable, of a draft, or known from a journal
			}
			kv := pack.KV{Seq: seq, Key: key, Value: slices.Clone(payload), Delete: len(payload) == 0}
			lostKeys = append(lostKeys, kv)
			applyKVs(b, []pack.KV{kv})
			return nil
		})
	}
	return lostKeys, errors.Join(err, b.flush())
}

// check opens the rebuilt store and counts what is there and what is not.
func (r *rebuild) check(ctx context.Context) error {
	config, err := LoadConfig(r.dir)
	if err != nil {
		return err
	}
	s, err := openLocked(ctx, r.dir, config, r.o, nil)
	if err != nil {
		return err
	}
	defer s.stop()
	l := newLocator(s)
	roots, pbs := s.snapshot()
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
		err := s.walkSegments(ctx, root, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for _, c := range seg.Chunks {
				if _, err := l.locate(c.ID); err != nil {
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
	return s.db.scan([]byte{'c'}, false, func([]byte, []byte, error) error {
		r.res.Chunks++
		return nil
	})
}
