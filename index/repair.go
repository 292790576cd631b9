package index

import (
	"context"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index/arena"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/repair"
)

// Repair rebuilds the index of a store that no process has open from the journals beside its packs. Where a journal is
// damaged or gone, Repair takes what the old index and journals put aside earlier still hold, and writes a new journal.
// The damaged one is put aside, since it may still be mended. The old index is kept until the new one is complete.
func Repair(ctx context.Context, dir string, o Options) (repair.Result, error) {
	o.setStorage()
	config, err := loadConfig(o.Storage, dir)
	again, noCopy := readConfigCopy(o.Storage, dir)
	damaged := fault.ClassOf(err) == fault.Corrupt
	if damaged && noCopy == nil {
		config, err = again, nil
	}
	if err != nil {
		return repair.Result{}, err
	}
	if err := o.Validate(); err != nil {
		return repair.Result{}, err
	}
	o.setDefaults(config)
	if err := CheckLayout(dir); err != nil {
		return repair.Result{}, err
	}
	lock, err := lockStore(ctx, dir, &o)
	if err != nil {
		return repair.Result{}, err
	}
	defer lock.Close()
	if err := finishKilled(o.Storage, dir); err != nil {
		return repair.Result{}, fault.Classify("repair", err)
	}
	if err := o.mendRing(ctx, dir, config); err != nil {
		return repair.Result{}, err
	}
	if err := o.unlock(ctx, dir, config); err != nil {
		return repair.Result{}, err
	}
	if damaged || noCopy != nil {
		if err := config.save(o.Storage, dir); err != nil {
			return RepairResult{}, fault.Classify("repair", err)
		}
		o.Logger.Info("config.json and its copy were made anew", "damaged", damaged)
	}
	return rebuildIndex(ctx, dir, config, o)
}

// rebuildIndex is Repair for the one who holds the lock.
func rebuildIndex(ctx context.Context, dir string, config Config, o Options) (repair.Result, error) {
	old := filepath.Join(dir, chunks.IndexFolder)
	fresh := old + ".new"
	res, err := repair.Build(ctx, o.repair(config, repair.Options{Dir: dir, Room: dir, Old: old, Fresh: fresh}))
	if err == nil {
		err = keys.Swap(old, fresh)
	}
	if err != nil {
		return res, fault.Classify("repair", err)
	}
	s, err := openLocked(ctx, dir, config, o, nil)
	if err != nil {
		return res, err
	}
	defer s.stop()
	return res, res.Count(ctx, s.chunks, s.roots, s.reading)
}

// repair completes what an index is to be built with.
func (o *Options) repair(config Config, r repair.Options) repair.Options {
	r.ReadOnly, r.Logger, r.FreeFloor, r.Index = o.ReadOnly, o.Logger, o.FreeFloor, o.keys()
	r.Packs, r.Chunks = o.packs(config), o.chunks(config, r.Dir)
	return r
}

// packs are the options of the packs of a store.
func (o *Options) packs(config Config) pack.Options {
	return pack.Options{
		Store: config.identity(), PackSize: config.PackSize, FreeFloor: o.FreeFloor, Logger: o.Logger,
		Storage: o.Storage, Coder: o.coder,
	}
}

// chunks are the options of the chunks of a store. They have an arena of their own.
func (o *Options) chunks(config Config, dir string) chunks.Options {
	return chunks.Options{
		Dir: dir, Logger: o.Logger, Arena: arena.New(o.spares()), ReadOnly: o.ReadOnly, Workers: o.Workers,
		IngestWorkers: o.Tuning.IngestWorkers, MaxChunk: config.Chunk.Max, PackSize: config.PackSize,
		CommitEvery: o.Tuning.CommitEvery, ShrinkJournal: o.Tuning.ShrinkJournal,
	}
}

// spares are the bytes of buffers kept for reuse; they count as cache. Every worker has some in use while a large file
// is written: with 8 MiB for 16 of them, mapping and unmapping buffers took half of the time of a write.
func (o *Options) spares() int64 { return min(max(8, 2*int64(o.Workers))<<20, o.CacheSize/8) }
