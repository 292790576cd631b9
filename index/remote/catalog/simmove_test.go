package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
)

// mover gives checkpoints other packs, as a collector does whose packs are less than half in use.
func (w *world) mover(a *actor) {
	if a.nonce != "" && w.rng.IntN(2) == 0 {
		if err := w.cat.Abandon(context.Background(), a.drafted, a.nonce); err != nil {
			w.failure("abandon", err)
		}
	}
	for range 1 + w.rng.IntN(2) {
		w.move(a)
	}
}

// move writes some things of some checkpoints anew, in a draft beside them, and has them use these.
func (w *world) move(a *actor) {
	ctx := context.Background()
	name := Beside(fmt.Sprintf("%016x", w.rng.IntN(2)))
	d, err := w.cat.Begin(ctx, name)
	if err != nil {
		w.failure("begin "+name, err)
		return
	}
	a.drafted, a.nonce = name, d.Nonce()
	moved := map[int]Pack{}
	var old []Pack
	for _, i := range w.rng.Perm(len(names))[:1+w.rng.IntN(len(names))] {
		if w.rng.IntN(4) == 0 {
			w.trim(names[i])
		}
		left, err := w.moveOne(d, names[i], moved)
		if err != nil {
			w.failure("give "+names[i]+" other packs", err)
			continue
		}
		old = append(old, left...)
	}
	if w.rng.IntN(2) == 0 {
		if err := w.cat.Retire(ctx, old); err != nil {
			w.failure("retire", err)
		}
	}
	if err := d.Abort(ctx); err != nil {
		w.failure("end "+name, err)
	}
}

// moveOne gives a checkpoint other packs for some of its things: those of moved, to which it adds; or, now and then,
// some that others have written. It gives the packs that it uses no more.
func (w *world) moveOne(d *Draft, name string, moved map[int]Pack) (old []Pack, err error) {
	ctx := context.Background()
	k, err := w.cat.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	before := needs(k.Record)
	packs := slices.Clone(before)
	for i, n := range k.Meta {
		if w.rng.IntN(2) == 0 {
			continue
		}
		to, ok := moved[int(n)]
		if known := w.index[int(n)]; !ok && len(known) > 0 && w.rng.IntN(2) == 0 {
			to, ok = known[w.rng.IntN(len(known))], true
			left := func(p Pack) bool { return slices.Contains(k.Packs, p) && !slices.Contains(before, p) }
			if at := slices.IndexFunc(known, left); at >= 0 { // of an exchange that did not end
				to = known[at]
			}
		}
		if !ok {
			b, err := w.fetch(k, i)
			if errors.Is(err, ErrRemoved) && w.standing[name].Nonce != k.Nonce {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if to, err = d.Add(ctx, bytes.NewReader(b), int64(len(b))); err != nil {
				return nil, err
			}
			moved[int(n)] = to
		}
		packs[i] = to
		if w.rng.IntN(8) == 0 {
			if err := d.Touch(ctx); err != nil {
				return nil, err
			}
		}
	}
	if err = k.Exchange(ctx, func(p Pack) bool { return slices.Contains(before, p) }, packs, k.Meta); err != nil {
		return nil, err
	}
	for i, p := range packs {
		if p != before[i] {
			old = append(old, before[i])
			w.index[int(k.Meta[i])] = append(w.index[int(k.Meta[i])], p)
		}
	}
	return old, nil
}

// trim takes from a root what an exchange that did not end has left in it.
func (w *world) trim(name string) {
	k, err := w.cat.Find(context.Background(), name)
	if err == nil {
		needed := needs(k.Record)
		err = k.Trim(context.Background(), func(p Pack) bool { return slices.Contains(needed, p) })
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		w.failure("trim "+name, err)
	}
}
