package remote

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/fault"
)

const (
	// earlyChunks is how many chunks a checkpoint that is being written has when it is begun to be uploaded: about half
	// as much as a pack object holds.
	earlyChunks = 128
	// earlyPause is how often it is looked what it has stored.
	earlyPause = 200 * time.Millisecond
	// mostWaiting is how many chunks may wait to be stored. When they are more, processors or disk have no time for an
	// upload: the processes that are dumped stand still meanwhile.
	mostWaiting = 2
)

// early is a checkpoint that is uploaded while it is being written.
type early struct {
	p  *push
	mu sync.Mutex // held while a chunk is added
	// over: it was taken by the push of the sealed checkpoint, or given up.
	over bool
}

// PushEarly begins to upload a checkpoint of a node that is being written, as it is stored, and returns when it has
// been sealed or aborted. Its Push goes on with what was uploaded; Forsake gives up what is never pushed. Where it
// cannot be begun, as when its name is taken in the bucket, the error says why, and nothing is lost: Push begins anew.
// One checkpoint at a time is uploaded so.
func (s *Store) PushEarly(ctx context.Context, n Node, id, name string) error {
	const op = "push early"
	for {
		ids, _, open := n.Stored(id, 0)
		if !open {
			return nil
		}
		if len(ids) >= earlyChunks {
			break
		}
		if err := pause(ctx, earlyPause); err != nil {
			return err
		}
	}
	select {
	case s.earlyTurn <- struct{}{}:
		defer func() { <-s.earlyTurn }()
	default:
		return nil
	}
	if err := s.Learn(ctx, n); err != nil {
		return err
	}
	e, err := s.beginEarly(ctx, n, id, name)
	if err != nil {
		return named(op, name, err)
	}
	if e == nil {
		return nil
	}
	for from := 0; ; {
		ids, waiting, open := n.Stored(id, from)
		if waiting > mostWaiting {
			ids = nil
		}
		ids = ids[:min(len(ids), earlyChunks/4)]
		for _, c := range ids {
			e.mu.Lock()
			if e.over {
				e.mu.Unlock()
				return nil
			}
			err := e.p.job.Add(c)
			e.mu.Unlock()
			if err != nil {
				s.dropEarly(ctx, id)
				return named(op, name, err)
			}
		}
		from += len(ids)
		if !open {
			break
		}
		if len(ids) > 0 {
			continue
		}
		if err := pause(ctx, earlyPause); err != nil {
			s.dropEarly(ctx, id)
			return err
		}
	}
	if _, err := n.Info(id); fault.ClassOf(err) == fault.NotFound { // it was aborted
		s.dropEarly(ctx, id)
	}
	return nil
}

// beginEarly takes a name for a checkpoint that is being written. It gives nil where that has been sealed meanwhile, or
// a Push has the name.
func (s *Store) beginEarly(ctx context.Context, n Node, id, name string) (*early, error) {
	select {
	case s.naming <- struct{}{}:
		defer func() { <-s.naming }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.earlyMu.Lock()
	pushed := s.pushed == name
	s.earlyMu.Unlock()
	if _, _, open := n.Stored(id, 0); pushed || !open {
		return nil, nil
	}
	d, err := s.begin(ctx, name)
	if err != nil {
		return nil, err
	}
	e := &early{p: s.newPush(ctx, n, d, name)}
	s.earlyMu.Lock()
	defer s.earlyMu.Unlock()
	s.earlies[id] = e
	return e, nil
}

// Forsake gives up what was begun early of checkpoints that are not to be pushed any more.
func (s *Store) Forsake(ctx context.Context, still func(id string) bool) {
	s.earlyMu.Lock()
	ids := slices.Collect(maps.Keys(s.earlies))
	s.earlyMu.Unlock()
	for _, id := range ids {
		if !still(id) {
			s.dropEarly(ctx, id)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take takes what was begun early of a checkpoint, if there is anything. Nothing is added to it by others any more.
func (s *Store) take(id string) *early {
	s.earlyMu.Lock()
	e := s.earlies[id]
	delete(s.earlies, id)
	s.earlyMu.Unlock()
	if e != nil {
		e.mu.Lock()
		e.over = true
		e.mu.Unlock()
	}
	return e
}

// takeEarly gives the push that was begun before the checkpoint was sealed, nil for none. One that failed is given up,
// and one under another name: the checkpoint was renamed.
func (s *Store) takeEarly(ctx context.Context, id, name string) *push {
	e := s.take(id)
	if e == nil {
		return nil
	}
	if e.p.name != name || e.p.job.Failed() {
		e.drop(ctx)
		return nil
	}
	return e.p
}

// dropEarly gives up what was begun early.
func (s *Store) dropEarly(ctx context.Context, id string) {
	if e := s.take(id); e != nil {
		e.drop(ctx)
	}
}

func (e *early) drop(ctx context.Context) {
	e.p.end()
	e.p.job.Drop()
	e.p.abort(ctx)
}
