package model

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/gpucr/gpucr-fs/index"
)

func (w *world) tag(o *op) error {
	on := o.Do == "tag"
	done := w.m.tag(o.Ckpt, o.To, on)
	var add, remove []string
	if on {
		add = []string{o.To}
	} else {
		remove = []string{o.To}
	}
	err := w.s.Tag(context.Background(), o.Ckpt, add, remove)
	done(err == nil)
	return w.answer(may(err, index.NotFound, index.InUse, index.Exists, index.Invalid))
}

func (w *world) rm(o *op) error {
	names := []string{o.Ckpt}
	if o.To != "" && o.To != o.Ckpt {
		names = append(names, o.To)
	}
	var done []func(bool)
	for _, name := range names {
		done = append(done, w.m.remove(name))
	}
	err := w.s.Remove(context.Background(), names)
	for _, f := range done {
		f(err == nil)
	}
	return w.answer(may(err, index.NotFound, index.InUse))
}

// move gives a checkpoint another name.
func (w *world) move(o *op) error {
	if o.Ckpt == o.To {
		return nil
	}
	done := w.m.move(o.Ckpt, o.To)
	err := w.s.Rename(context.Background(), o.Ckpt, o.To)
	done(err == nil, err != nil && may(err, index.NotFound, index.InUse, index.Exists, index.Invalid) == nil)
	return w.answer(may(err, index.NotFound, index.InUse, index.Exists, index.Invalid))
}

func (w *world) profile(o *op) error {
	text := ""
	if o.Seed%4 > 0 {
		text = fmt.Sprintf("profile %d", o.Seed)
	}
	done := w.m.profile(o.Ckpt, text)
	var b []byte
	if text != "" {
		b = []byte(text)
	}
	err := w.s.SetProfile(o.Ckpt, b)
	done(err == nil)
	return w.answer(may(err, index.NotFound, index.InUse, index.Invalid))
}

// hotSet stores a hot set and reads it back. It may get lost at any time.
func (w *world) hotSet(o *op) error {
	want := data(o.Seed, o.Len)
	err := w.s.SetHotSet(o.Ckpt, o.Len, func(out io.Writer) error {
		_, err := out.Write(want)
		return err
	})
	if err != nil {
		return w.answer(may(err, index.NotFound, index.InUse, index.Invalid))
	}
	f, err := w.s.HotSet(o.Ckpt)
	if err != nil {
		return w.answer(may(err, index.NotFound))
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err == nil && !bytes.Equal(got, want) && w.p.Mode != liars {
		return fmt.Errorf("the hot set is not what was stored")
	}
	return nil
}

func (w *world) dry(*op) error {
	_, err := w.s.GC(context.Background(), index.GCOptions{DryRun: true})
	return w.answer(err)
}

func (w *world) usage(*op) error {
	_, err := w.s.Usage(context.Background())
	return w.answer(err)
}

// reopen closes the store and opens it again. With calls that fail it is tried again: a failed open leaves the store
// as it was.
func (w *world) reopen(*op) error {
	if err := w.answer(w.close()); err != nil {
		return err
	}
	return w.openAgain()
}

func (w *world) openAgain() error {
	err := w.open(false)
	if err == nil || w.answer(err) != nil {
		return err
	}
	w.mu.Lock()
	w.watch.draw = false
	w.mu.Unlock()
	for _, try := range []func() error{func() error { return w.open(false) }, func() error { return w.open(true) }} {
		if err = try(); err == nil {
			return nil
		}
		if w.p.Mode != liars {
			break
		}
	}
	if w.p.Mode == liars && slices.Contains([]index.Class{index.Corrupt, index.NoStore}, index.ClassOf(err)) {
		return errUnusable
	}
	return err
}

func (w *world) repairStep(*op) error {
	if err := w.answer(w.close()); err != nil {
		return err
	}
	err := w.repair()
	if err == nil {
		err = w.openAgain()
	} else if w.answer(err) == nil {
		err = w.openAgain()
		if err != nil && w.p.Mode != liars {
			w.mu.Lock()
			w.watch.draw = false
			w.mu.Unlock()
			if err = w.repair(); err == nil {
				err = w.open(false)
			}
		}
	}
	if err != nil || w.hurt() {
		return err
	}
	return w.sound(w.compare)
}

// crash goes on with the store as a crash at this moment leaves it.
func (w *world) crash(o *op) error {
	img := w.moment()
	if img == nil {
		return nil // at another moment
	}
	w.mu.Lock()
	w.images = nil
	w.mu.Unlock()
	w.close()
	v, gone, what, err := w.after(img, mix(w.p.Seed, o.Seed))
	if err != nil {
		return err
	}
	w.mem, w.dir, w.m, w.older, w.base = v.mem, v.dir, v.m, nil, ""
	w.n.crashes.Add(1)
	draw := w.watch.draw
	w.watch.draw = w.p.Mode == crashes && draw
	if err := w.open(gone); err != nil {
		if w.p.Mode == liars && index.ClassOf(err) == index.Corrupt {
			return errUnusable
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := w.compare(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
