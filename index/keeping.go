package index

import "context"

// GC gives back the space of payload that no checkpoint uses, and removes incomplete checkpoints.
//
// It never guesses. If a manifest cannot be read, GC collects only packs that were begun after that checkpoint was
// sealed, for the checkpoint cannot use these. A chunk that a manifest names and the index does not know is kept
// wherever a journal lists it. In both cases the error (Class Corrupt) names what is damaged, and the result still
// tells what was given back. A pack whose journal is damaged, or does not list a slot in use, is left alone:
// GCResult.Kept.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	res, err := s.upkeep.GC(ctx, o)
	if err == nil && !o.DryRun && o.Stands != nil {
		res.Forgotten += s.learned.Forget(o.Stands)
	}
	return res, err
}

// Verify reads manifests, journals and payload, and reports every damage; err only where it could not go on.
// Payload is held against its guard and, decoded, against its id. Memory: a bit per 4 KiB of pack, and the journal
// of one pack.
//
// A verification of the whole store saves how far it has come with the payload (verifyprogress.go), also when ctx
// ends. With Resume the next one goes on there: it looks at all manifests and journals, at payload that was not
// read, and at chunks recorded as damaged, so that its result names the problems of all parts.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) {
	return s.upkeep.Verify(ctx, o)
}

// Optimize stores chunks of sealed checkpoints anew smaller that were stored fast. It gives no space back, GC does. It
// works on one processor, and a batch a second while a draft is open or o.Busy says so. It does nothing while a
// manifest cannot be read, for nobody knows which chunks that needs.
func (s *Store) Optimize(ctx context.Context, o OptimizeOptions) (OptimizeResult, error) {
	return s.upkeep.Optimize(ctx, o)
}

// List gives all checkpoints with exact byte counts, oldest first. A checkpoint that cannot be counted has its Damage
// set; what others may share with it counts as Unique there.
func (s *Store) List(ctx context.Context) ([]Info, error) { return s.books.List(ctx) }

// Usage gives the whole store's accounting.
func (s *Store) Usage(ctx context.Context) (Usage, error) { return s.books.Usage(ctx) }

// Frees gives the bytes in packs that only the checkpoints with these IDs use; see [accounting.Books.Frees].
func (s *Store) Frees(ctx context.Context, ids []string) (int64, error) {
	return s.books.Frees(ctx, ids)
}
