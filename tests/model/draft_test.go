package model

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/gpucr/gpucr-fs/index"
)

// draft is a checkpoint being written, and what its files hold. Guarded by state.mu, as steps beside others use it too.
type draft struct {
	name    string
	d       *index.Draft
	order   sync.Mutex // writers take turns, so that what it holds is known; sealing and aborting it does not wait
	making  sync.Mutex // held while a file is made and noted, and while a seal begins, so that neither comes between
	files   map[string][]byte
	coming  map[string][]byte // what a write at work will make of it
	unknown map[string]bool   // a write to it failed: it may hold anything
	handles map[string]*index.DraftFile
	cut     map[string]bool // it may be cut in other places than one that is written from beginning to end
	sealing *version
	hurt    bool // a storage call failed while it was open: it may fail later
	over    bool
}

func (d *draft) closeFiles() {
	for _, h := range d.handles {
		h.Close()
	}
	d.handles = map[string]*index.DraftFile{}
}

// content gives what the files may hold, as a version has it.
func (d *draft) content() *version {
	v := &version{files: map[string][][]byte{}, cut: maps.Clone(d.cut)}
	for name, b := range d.files {
		v.files[name] = [][]byte{b}
		if now, ok := d.coming[name]; ok {
			v.files[name] = append(v.files[name], now)
		}
		if d.unknown[name] {
			v.files[name] = nil
		}
	}
	return v
}

func (w *world) draft(name string) *draft {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.drafts[name]; d != nil && !d.over {
		return d
	}
	return nil
}

func (w *world) create(o *op) error {
	if w.draft(o.Ckpt) != nil {
		return nil
	}
	_, err := w.newDraft(o.Ckpt)
	return w.answer(may(err, index.Exists, index.InUse))
}

func (w *world) newDraft(name string) (*draft, error) {
	d, err := w.s.Create(context.Background(), name, index.CreateOptions{})
	if err != nil {
		return nil, err
	}
	out := &draft{name: name, d: d, files: map[string][]byte{}, coming: map[string][]byte{}, unknown: map[string]bool{},
		cut: map[string]bool{}, handles: map[string]*index.DraftFile{}}
	w.mu.Lock()
	if old := w.drafts[name]; old != nil {
		w.ended = append(w.ended, old)
	}
	w.drafts[name] = out
	w.mu.Unlock()
	return out, d.Mkdir("d", 0o700)
}

// settle takes the error of a write to a file: it passes where storage failed while the draft was open, or the draft
// has ended meanwhile.
func (w *world) settle(d *draft, file string, err error) error {
	if err == nil {
		return nil
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if index.ClassOf(err) == index.ReadOnly && (d.sealing != nil || d.over) {
		return nil
	}
	d.unknown[file], d.cut[file] = true, true
	if d.sealing != nil {
		d.sealing.files[file] = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.hurt || w.p.Mode == liars {
		return nil
	}
	return err
}

// handle gives a file of a draft, open for writing, and what it holds. fresh makes it if need be.
func (w *world) handle(d *draft, file string, fresh bool) (*index.DraftFile, []byte, error) {
	w.m.mu.Lock()
	h, content := d.handles[file], d.files[file]
	_, there := d.files[file]
	w.m.mu.Unlock()
	if h != nil {
		return h, content, nil
	}
	var err error
	if there {
		h, err = d.d.Open(file)
	} else if fresh {
		d.making.Lock()
		defer d.making.Unlock()
		w.m.mu.Lock()
		if d.sealing != nil { // whether it gets in nobody can say
			w.m.mu.Unlock()
			return nil, nil, nil
		}
		w.m.mu.Unlock()
		h, err = d.d.Create(file, 0o600)
	} else {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	d.handles[file] = h
	if !there {
		d.files[file] = []byte{}
	}
	return h, content, nil
}

// edit changes a file of a draft and what it is to hold: by an append, or else it may be cut elsewhere. What was
// acknowledged while the draft is being sealed must be in what is sealed.
func (w *world) edit(o *op, fresh bool, change func(h *index.DraftFile, old []byte) ([]byte, error)) error {
	d := w.draft(o.Ckpt)
	if d == nil {
		return nil
	}
	d.order.Lock()
	defer d.order.Unlock()
	h, old, err := w.handle(d, o.File, fresh)
	if err != nil || h == nil {
		return w.settle(d, o.File, err)
	}
	w.m.mu.Lock()
	if appends := o.Do == "flush" || o.Do == "write" && (o.Off < 0 || o.Off >= int64(len(old))); !appends {
		d.cut[o.File] = true
	}
	w.m.mu.Unlock()
	now, err := change(h, old)
	w.m.mu.Lock()
	delete(d.coming, o.File)
	if err == nil {
		d.files[o.File] = now
	}
	w.m.mu.Unlock()
	return w.settle(d, o.File, err)
}

// foresee tells what a file of a draft is about to hold. If the draft is being sealed, that may be found.
func (w *world) foresee(o *op, now []byte) {
	d := w.draft(o.Ckpt)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if d == nil {
		return
	}
	d.coming[o.File] = now
	if d.sealing != nil && d.sealing.files[o.File] != nil {
		d.sealing.files[o.File] = append(d.sealing.files[o.File], now)
	}
}

func (w *world) write(o *op) error {
	return w.edit(o, true, func(h *index.DraftFile, old []byte) ([]byte, error) {
		off := o.Off
		if off < 0 {
			off = int64(len(old))
		}
		p := data(o.Seed, o.Len)
		now := overlay(old, p, off)
		w.foresee(o, now)
		_, err := h.WriteAt(p, off)
		return now, err
	})
}

func (w *world) truncate(o *op) error {
	return w.edit(o, false, func(h *index.DraftFile, old []byte) ([]byte, error) {
		now := resized(old, o.Off)
		w.foresee(o, now)
		return now, h.Truncate(o.Off)
	})
}

func (w *world) punch(o *op) error {
	return w.edit(o, false, func(h *index.DraftFile, old []byte) ([]byte, error) {
		now := old
		if n := min(o.Len, int64(len(old))-o.Off); n > 0 {
			now = overlay(old, make([]byte, n), o.Off)
		}
		w.foresee(o, now)
		return now, h.PunchHole(o.Off, o.Len)
	})
}

// hammer overwrites one place again and again.
func (w *world) hammer(o *op) error {
	return w.edit(o, false, func(h *index.DraftFile, old []byte) ([]byte, error) {
		now := old
		for i := range o.Len {
			p := data(o.Seed+uint64(i), 700)
			now = overlay(old, p, o.Off) // of the same length each time
			w.foresee(o, now)
			if _, err := h.WriteAt(p, o.Off); err != nil {
				return nil, err
			}
		}
		return now, nil
	})
}

func (w *world) readDraft(o *op) error {
	d := w.draft(o.Ckpt)
	if d == nil {
		return nil
	}
	d.order.Lock()
	defer d.order.Unlock()
	h, want, err := w.handle(d, o.File, false)
	if err != nil || h == nil {
		return w.settle(d, o.File, err)
	}
	w.m.mu.Lock()
	d.cut[o.File] = true // what it has is stored before it is read
	w.m.mu.Unlock()
	got := make([]byte, h.Size())
	_, err = h.ReadAt(got, 0)
	if err = ignore(err, io.EOF); err != nil {
		return w.settle(d, o.File, err)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if !d.unknown[o.File] && !bytes.Equal(got, want) && !d.over {
		return fmt.Errorf("file %s of the draft holds other bytes than were written", o.File)
	}
	return nil
}

func (w *world) flush(o *op) error {
	return w.edit(o, false, func(h *index.DraftFile, old []byte) ([]byte, error) {
		if d := w.draft(o.Ckpt); d != nil && o.Seed%2 == 1 {
			return old, d.d.Flush()
		}
		return old, h.Flush(context.Background())
	})
}

// names of a draft: these are not run beside its seal.

// named gives the draft of an operation on the name of a file, with its order taken; nil without such a file, or while
// the draft is sealed.
func (w *world) named(o *op) *draft {
	d := w.draft(o.Ckpt)
	if d == nil {
		return nil
	}
	d.order.Lock()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if _, there := d.files[o.File]; !there || d.sealing != nil {
		d.order.Unlock()
		return nil
	}
	return d
}

// forget takes a file out of what the model knows of a draft; the world's lock is held.
func (d *draft) forget(file string) {
	delete(d.files, file)
	delete(d.handles, file)
	delete(d.unknown, file)
	delete(d.cut, file)
}

func (w *world) rename(o *op) error {
	if o.File == o.To {
		return nil
	}
	d := w.named(o)
	if d == nil {
		return nil
	}
	defer d.order.Unlock()
	if err := d.d.Rename(o.File, o.To); err != nil {
		return w.settle(d, o.File, err)
	}
	w.m.mu.Lock()
	h := d.handles[o.To]
	d.files[o.To], d.handles[o.To], d.unknown[o.To] = d.files[o.File], d.handles[o.File], d.unknown[o.File]
	d.cut[o.To] = true // the name tells where the first page of some files begins
	d.forget(o.File)
	if d.handles[o.To] == nil {
		delete(d.handles, o.To)
	}
	w.m.mu.Unlock()
	if h != nil { // it waits for chunks on their way, whose writes are crash points, which look at the model
		h.Close()
	}
	return nil
}

func (w *world) unlink(o *op) error {
	d := w.named(o)
	if d == nil {
		return nil
	}
	defer d.order.Unlock()
	if err := d.d.Remove(o.File); err != nil {
		return w.settle(d, o.File, err)
	}
	w.m.mu.Lock()
	h := d.handles[o.File]
	d.forget(o.File)
	w.m.mu.Unlock()
	if h != nil {
		h.Close()
	}
	return nil
}

func (w *world) seal(o *op) error {
	for range 1 + o.Seed%2 { // again, if it failed
		if d := w.draft(o.Ckpt); d != nil {
			if err := w.sealDraft(d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) sealDraft(d *draft) error {
	d.making.Lock()
	w.m.mu.Lock()
	if d.sealing != nil {
		w.m.mu.Unlock()
		d.making.Unlock()
		return nil // a step beside this one is at it
	}
	for _, name := range recut {
		d.cut[name] = true
	}
	v := d.content()
	d.sealing = v
	w.m.mu.Unlock()
	d.making.Unlock()
	done := w.m.seal(d.name, v, "")
	_, err := d.d.Seal(context.Background())
	if err == nil {
		w.sealed(d, done)
		return nil
	}
	done(nil)
	w.m.mu.Lock()
	d.sealing = nil
	for name := range d.files {
		d.cut[name] = true // where they ended then
	}
	w.m.mu.Unlock()
	w.mu.Lock()
	over, hurt := d.over, d.hurt || w.watch.faults > 0
	w.mu.Unlock()
	if over || hurt || w.p.Mode == liars {
		return nil
	}
	return err
}

// sealed ends the draft. What is in it is known once the writes beside the seal have been answered.
func (w *world) sealed(d *draft, done func(*version)) {
	w.mu.Lock()
	d.over = true
	w.later = append(w.later, func() {
		w.m.mu.Lock()
		final := d.content()
		for name, contents := range d.sealing.files {
			if contents == nil {
				final.files[name] = nil
			}
		}
		w.m.mu.Unlock()
		done(final)
	})
	o := w.watch.op
	w.mu.Unlock()
	if o == nil || len(o.Beside) == 0 && o.Do != "par" {
		w.finishLater()
	}
}

// finishLater does what has waited for steps beside others. Call without mu: the state's lock comes first, see moment.
func (w *world) finishLater() {
	w.mu.Lock()
	later := w.later
	w.later = nil
	w.mu.Unlock()
	for _, f := range later {
		f()
	}
}

func (w *world) abort(o *op) error {
	d := w.draft(o.Ckpt)
	if d == nil {
		return nil
	}
	return w.abortDraft(d)
}

func (w *world) abortDraft(d *draft) error {
	w.m.mu.Lock()
	busy := d.sealing != nil
	w.m.mu.Unlock()
	done := func(bool) {}
	if !busy { // else either comes first; after a seal this does nothing
		done = w.m.remove(d.name)
	}
	w.mu.Lock()
	d.over = true
	w.mu.Unlock()
	err := d.d.Abort()
	done(err == nil)
	return w.answer(err)
}
