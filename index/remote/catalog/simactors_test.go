package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

const (
	contents = 4
	writers  = 3
	readers  = 2
	gatherer = 2
	movers   = 2
)

var names = []string{"a", "b", "c"}

// populate fills the bucket with some checkpoints, and packs that nobody needs any more, and starts the actors.
func (w *world) populate() {
	for i, name := range names[:2] {
		w.dump(nil, name, []int{i, i + 1})
	}
	w.dump(nil, "old", w.rng.Perm(contents))
	if err := w.cat.Remove(context.Background(), "old"); err != nil {
		w.fail("remove: %v", err)
	}
	for _, key := range w.mem.Keys() {
		if strings.HasPrefix(key, removedDir) {
			w.mem.Delete(context.Background(), key, bucket.Cond{})
		}
	}
	for i := range writers {
		w.start(fmt.Sprint("writer ", i), w.writer)
	}
	for i := range gatherer {
		w.start(fmt.Sprint("collector ", i), w.collector)
	}
	for i := range movers {
		w.start(fmt.Sprint("mover ", i), w.mover)
	}
	for i := range readers {
		w.start(fmt.Sprint("reader ", i), func(*actor) {
			for range 1 + w.rng.IntN(2) {
				w.read(w.anyName())
			}
		})
	}
}

func (w *world) anyName() string { return names[w.rng.IntN(len(names))] }

func (w *world) collector(*actor) {
	some := []time.Duration{0, 40, 1000, 1000}
	g := w.cat.Collector(Patience{Pending: some[w.rng.IntN(4)], Removed: some[w.rng.IntN(2)],
		Now: func() time.Duration { return time.Duration(w.step) }})
	for range 1 + w.rng.IntN(2) {
		if _, err := g.Collect(context.Background()); err != nil {
			w.failure("collect", err)
		}
	}
}

// writer removes and dumps. One that crashed gives up the draft of its former life first, sometimes.
func (w *world) writer(a *actor) {
	ctx := context.Background()
	if a.nonce != "" && w.rng.IntN(2) == 0 {
		if err := w.cat.Abandon(ctx, a.drafted, a.nonce); err != nil {
			w.failure("abandon", err)
		}
	}
	for range 1 + w.rng.IntN(2) {
		name := w.anyName()
		if w.rng.IntN(3) > 0 {
			w.remove(name)
		}
		things := w.rng.Perm(contents)[:1+w.rng.IntN(3)]
		w.dump(a, name, things)
	}
}

// remove removes a checkpoint.
func (w *world) remove(name string) {
	before := w.standing[name]
	err := w.cat.Remove(context.Background(), name)
	if now := w.standing[name]; err == nil && before.Nonce != "" && now.Nonce == before.Nonce {
		w.fail("%s was told to be removed and stands", name)
	}
	if err != nil {
		w.failure("remove "+name, err)
	}
}

// dump stores things as a checkpoint. What the machine has heard of before it claims instead of writing it.
func (w *world) dump(a *actor, name string, things []int) {
	ctx := context.Background()
	d, err := w.cat.Begin(ctx, name)
	if err != nil {
		w.failure("begin "+name, err)
		return
	}
	if a != nil {
		a.drafted, a.nonce = name, d.Nonce()
	}
	packs, err := w.store(ctx, d, things)
	if err == nil && a != nil && w.rng.IntN(16) == 0 {
		err = d.Abort(ctx)
	} else if err == nil {
		meta := make([]byte, len(things))
		for i, n := range things {
			meta[i] = byte(n)
		}
		if err = d.Seal(ctx, packs, meta); err == nil {
			if !w.sealed[d.Nonce()] {
				w.fail("%s was told to be sealed and is not", name)
			}
			for i, n := range things {
				if !slices.Contains(w.index[n], packs[i]) {
					w.index[n] = append(w.index[n], packs[i])
				}
			}
		} else if errors.Is(err, ErrTaken) && w.sealed[d.Nonce()] && w.standing[name].Nonce == d.Nonce() {
			w.fail("%s stands and its writer was told that it does not", name)
		}
	}
	if err != nil {
		w.failure("dump "+name, err)
	}
}

func (w *world) store(ctx context.Context, d *Draft, things []int) ([]Pack, error) {
	packs := make([]Pack, len(things))
	var claims []Pack
	for i, n := range things {
		if known := w.index[n]; len(known) > 0 && w.rng.IntN(5) > 0 {
			packs[i] = known[len(known)-1]
			if w.rng.IntN(4) == 0 {
				packs[i] = known[w.rng.IntN(len(known))]
			}
			claims = append(claims, packs[i])
		}
	}
	early := w.rng.IntN(2) == 0
	claim := func() error {
		lost, err := d.Claim(ctx, claims)
		for i := range packs {
			if slices.Contains(lost, packs[i]) {
				packs[i] = Pack{}
			}
		}
		return err
	}
	if early {
		if err := claim(); err != nil {
			return nil, err
		}
	}
	add := func() error {
		for i, n := range things {
			if packs[i].ID != "" {
				continue
			}
			p, err := d.Add(ctx, bytes.NewReader(content(n)), int64(n+1))
			if err != nil {
				return err
			}
			packs[i] = p
			if w.rng.IntN(8) == 0 {
				if err := d.Touch(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := add(); err != nil {
		return nil, err
	}
	if !early {
		if err := claim(); err != nil {
			return nil, err
		}
	}
	return packs, add()
}
