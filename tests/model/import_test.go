package model

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpucr/gpucr-fs/index"
)

// importCopy writes a checkpoint at once: what another holds, or patterns.
func (w *world) importCopy(o *op) error {
	if w.draft(o.Ckpt) != nil {
		return nil
	}
	d, err := w.newDraft(o.Ckpt)
	if err != nil {
		return w.answer(may(err, index.Exists, index.InUse))
	}
	if err := w.fill(d, w.contentFor(o)); err != nil {
		if e := w.settle(d, "", err); e != nil {
			return e
		}
		return w.abortDraft(d)
	}
	if err := w.sealDraft(d); err != nil {
		return err
	}
	w.mu.Lock()
	over := d.over
	w.mu.Unlock()
	if !over {
		return w.abortDraft(d)
	}
	return nil
}

// trial writes a checkpoint and aborts it.
func (w *world) trial(o *op) error {
	if w.draft(o.Ckpt) != nil {
		return nil
	}
	d, err := w.newDraft(o.Ckpt)
	if err != nil {
		return w.answer(may(err, index.Exists, index.InUse))
	}
	if err := w.settle(d, "", w.fill(d, w.contentFor(o))); err != nil {
		return err
	}
	return w.abortDraft(d)
}

// contentFor gives what an import writes: the known content of the checkpoint To, or patterns.
func (w *world) contentFor(o *op) map[string][]byte {
	files := map[string][]byte{}
	w.m.mu.Lock()
	if e := w.m.names[o.To]; e != nil && len(e.versions) > 0 {
		for name, contents := range e.versions[0].files {
			if len(contents) > 0 {
				files[name] = contents[len(contents)-1]
			}
		}
	}
	w.m.mu.Unlock()
	if len(files) == 0 {
		for i := range int64(3) {
			files[fmt.Sprintf("f%d", i)] = data(o.Seed+uint64(i), o.Len/(i+1))
		}
	}
	return files
}

// make makes a file that is about to hold content.
func (w *world) make(d *draft, name string, content []byte) (*index.DraftFile, error) {
	d.making.Lock()
	defer d.making.Unlock()
	h, err := d.d.Create(name, 0o600)
	if err != nil {
		return nil, err
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	d.handles[name], d.files[name], d.coming[name] = h, []byte{}, content
	return h, nil
}

func (w *world) fill(d *draft, files map[string][]byte) error {
	d.order.Lock()
	defer d.order.Unlock()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w.m.mu.Lock()
		_, there := d.files[name]
		w.m.mu.Unlock()
		if there {
			continue // a step beside this one has made it
		}
		h, err := w.make(d, name, files[name])
		if err != nil {
			return err
		}
		if _, err := h.WriteAt(files[name], 0); err != nil {
			return err
		}
		w.m.mu.Lock()
		d.files[name] = files[name]
		delete(d.coming, name)
		w.m.mu.Unlock()
	}
	return nil
}
