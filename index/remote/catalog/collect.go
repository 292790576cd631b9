package catalog

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Report is what a collection did.
type Report struct {
	Packs     int   // deleted
	Bytes     int64 // of these packs
	Abandoned int   // drafts set void
	Kept      int   // packs that are in use again, though they were not at first
	Failed    int   // objects that could not be dealt with; the next run looks at them again
}

// Collector deletes what no checkpoint needs. Its methods must not be called at once; any number of collectors may run
// in the same bucket.
type Collector struct {
	c        *Catalog
	patience Patience
	seen     map[string]seenAt
	harmless map[string]bool // tombstones of earlier runs of this collector over packs it has never tried to delete
}

// Collector gives a collector.
func (c *Catalog) Collector(p Patience) *Collector {
	if p.Now == nil {
		start := time.Now()
		p.Now = func() time.Duration { return time.Since(start) }
	}
	return &Collector{c: c, patience: p, seen: map[string]seenAt{}, harmless: map[string]bool{}}
}

// tombKey gives the key of a run's tombstone over a pack.
func tombKey(pack, run string) string { return tombDir + pack + "." + run }

// tombPack gives the pack that a tombstone stands for.
func tombPack(key string) string {
	pack, _, _ := strings.Cut(strings.TrimPrefix(key, tombDir), ".")
	return pack
}

// collection is one run of a collector.
type collection struct {
	*Collector
	run    string
	report Report
	watch  map[string]seenAt
	roots  map[string]root // those read in this run
	first  error           // of the failures counted in report
}

// Garbage gives the packs that Collect would delete now, at most, and changes nothing. What abandoned drafts and
// removed checkpoints still keep is not among them.
func (g *Collector) Garbage(ctx context.Context) ([]Pack, error) {
	r := &collection{Collector: g, roots: map[string]root{}}
	packs, err := r.list(ctx, packDir)
	if err != nil {
		return nil, fmt.Errorf("look for garbage: %w", err)
	}
	used, err := r.references(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("look for garbage: %w", err)
	}
	return unused(packs, used), nil
}

// unused gives those of the packs that are not in use. What has no pack's name is nobody's business here.
func unused(packs []bucket.Info, used references) (rest []Pack) {
	for _, info := range packs {
		p := Pack{strings.TrimPrefix(info.Key, packDir), info.Size}
		if ValidPack(p) && !used.has(p.ID) {
			rest = append(rest, p)
		}
	}
	return rest
}

// Collect deletes the packs that no root needs, and what drafts, removals and collectors left behind. When single
// objects fail it goes on with the others, and gives the first failure at the end.
func (g *Collector) Collect(ctx context.Context) (Report, error) {
	r := &collection{Collector: g, run: g.c.o.Nonce(), watch: map[string]seenAt{}, roots: map[string]root{}}
	if g.c.omit.ownTombs {
		r.run = "shared"
	}
	err := r.collect(ctx)
	if err == nil {
		g.seen = r.watch
		err = r.first
	}
	if err != nil {
		err = fmt.Errorf("collect: %w", err)
	}
	return r.report, err
}

func (r *collection) collect(ctx context.Context) error {
	tombs, err := r.list(ctx, tombDir)
	if err != nil {
		return err
	}
	// Packs are listed after the tombstones: a tombstone without a pack is then one whose pack has gone.
	packs, err := r.list(ctx, packDir)
	if err != nil {
		return err
	}
	used, err := r.references(ctx, true)
	if err != nil {
		return err
	}
	candidates := r.condemn(ctx, unused(packs, used))
	if !r.c.omit.second {
		if used, err = r.references(ctx, false); err != nil {
			return err
		}
	}
	graves := map[string][]string{}
	for _, t := range tombs {
		graves[tombPack(t.Key)] = append(graves[tombPack(t.Key)], t.Key)
	}
	for _, p := range candidates {
		if used.has(p.ID) {
			r.report.Kept++
			r.takeBack(ctx, tombKey(p.ID, r.run))
		} else {
			r.delete(ctx, p, append(graves[p.ID], tombKey(p.ID, r.run)))
		}
	}
	r.leftTombs(ctx, tombs, packs)
	return nil
}

// list gives all objects below a folder in the order of their keys.
func (r *collection) list(ctx context.Context, dir string) (all []bucket.Info, err error) {
	for info, err := range bucket.All(ctx, r.c.b, dir) {
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

// condemn writes a tombstone for each of the packs. It gives those that have theirs.
func (r *collection) condemn(ctx context.Context, packs []Pack) (candidates []Pack) {
	for _, p := range packs {
		key := tombKey(p.ID, r.run)
		_, err := r.c.b.Put(ctx, key, bytes.NewReader(nil), 0, bucket.Cond{})
		if r.failed(err) {
			r.takeBack(ctx, key)
			continue
		}
		candidates = append(candidates, p)
	}
	return candidates
}

// delete removes a pack, then the tombstones over it. Where the pack may still stand, they stay.
func (r *collection) delete(ctx context.Context, p Pack, tombs []string) {
	if r.failed(r.c.b.Delete(ctx, PackKey(p.ID), bucket.Cond{})) {
		return
	}
	r.report.Packs++
	r.report.Bytes += p.Size
	for _, key := range tombs {
		r.failed(r.c.b.Delete(ctx, key, bucket.Cond{}))
	}
}

// takeBack removes a tombstone of this run whose pack was never to be deleted, now or in the collector's next run.
func (r *collection) takeBack(ctx context.Context, key string) {
	if r.failed(r.c.b.Delete(ctx, key, bucket.Cond{})) {
		r.harmless[key] = true
	} else {
		delete(r.harmless, key)
	}
}

// leftTombs removes tombstones that earlier runs left.
func (r *collection) leftTombs(ctx context.Context, tombs, packs []bucket.Info) {
	standing := make(map[string]bool, len(packs))
	for _, info := range packs {
		standing[strings.TrimPrefix(info.Key, packDir)] = true
	}
	for _, t := range tombs {
		switch {
		case !standing[tombPack(t.Key)]:
			r.failed(r.c.b.Delete(ctx, t.Key, bucket.Cond{}))
		case r.harmless[t.Key]:
			r.takeBack(ctx, t.Key)
		case r.patience.Foreign > 0 && r.unchanged(t.Key, t.ETag, r.patience.Foreign):
			r.failed(r.c.b.Delete(ctx, t.Key, bucket.Cond{}))
		}
	}
}

// failed counts a failure, and says whether there was one.
func (r *collection) failed(err error) bool {
	if err == nil {
		return false
	}
	r.report.Failed++
	if r.first == nil {
		r.first = err
	}
	return true
}

// references are the packs that roots need.
type references struct {
	packs  map[string]bool
	drafts map[string]bool // nonces of drafts, all of whose packs are needed
}

func (f references) has(pack string) bool {
	return f.packs[pack] || len(pack) > nonceDigits && f.drafts[pack[:nonceDigits]]
}

func (f references) add(packs []Pack) {
	for _, p := range packs {
		f.packs[p.ID] = true
	}
}

// references reads all roots, then what removals keep: in this order, as a removal first writes what is kept. With tidy
// it gives up abandoned drafts, void roots and what was kept long enough. A root that cannot be read is an error.
func (r *collection) references(ctx context.Context, tidy bool) (references, error) {
	used := references{map[string]bool{}, map[string]bool{}}
	for _, dir := range [...]string{rootDir, removedDir} {
		for info, err := range bucket.All(ctx, r.c.b, dir) {
			if err != nil {
				return used, err
			}
			rec, err := r.root(ctx, info)
			switch {
			case bucket.ClassOf(err) == bucket.NotFound:
				continue
			case err != nil:
				return used, err
			case tidy && r.tidied(ctx, rec):
				continue
			}
			if rec.State == Pending {
				if r.c.omit.pending {
					continue
				}
				used.drafts[rec.Nonce] = true
			}
			used.add(rec.Packs)
		}
	}
	return used, nil
}

// root reads a root, or what a removal keeps, unless this run has read it as it is listed.
func (r *collection) root(ctx context.Context, info bucket.Info) (root, error) {
	if known, ok := r.roots[info.Key]; ok && known.etag == info.ETag {
		return known, nil
	}
	rec, err := r.c.read(ctx, info.Key)
	if err == nil {
		r.roots[info.Key] = rec
	}
	return rec, err
}

// tidied gives up what was left behind, and says whether it needs no packs any more.
func (r *collection) tidied(ctx context.Context, rec root) bool {
	switch {
	case rec.State == Void && r.c.o.ConditionalDelete:
		// Somebody else may have taken the name or deleted the root meanwhile: nothing is wrong then.
		err := r.c.b.Delete(ctx, rec.key, bucket.IfMatch(rec.etag))
		r.failed(unlessPrecondition(err))
		return true
	case rec.State == Pending && r.unchanged(rec.key, rec.etag, r.patience.Pending):
		void := Record{State: Void, Name: rec.Name, Nonce: rec.Nonce}
		_, err := r.c.write(ctx, void, bucket.IfMatch(rec.etag))
		if err == nil {
			delete(r.watch, rec.key)
			r.report.Abandoned++
		}
		r.failed(unlessPrecondition(err))
		return err == nil
	case rec.State == Removed && r.unchanged(rec.key, rec.etag, r.patience.Removed):
		if r.failed(r.c.b.Delete(ctx, rec.key, bucket.Cond{})) {
			return false
		}
		delete(r.watch, rec.key)
		return true
	}
	return false
}

func unlessPrecondition(err error) error {
	if bucket.ClassOf(err) == bucket.Precondition {
		return nil
	}
	return err
}
