package model

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/storage"
)

var verbs map[string]func(*world, *op) error

func init() {
	verbs = map[string]func(*world, *op) error{
		"draft": (*world).create, "write": (*world).write, "truncate": (*world).truncate, "punch": (*world).punch,
		"hammer": (*world).hammer,
		"rename": (*world).rename, "unlink": (*world).unlink, "read": (*world).readDraft, "flush": (*world).flush,
		"seal": (*world).seal, "abort": (*world).abort, "import": (*world).importCopy, "trial": (*world).trial,
		"tag": (*world).tag, "untag": (*world).tag, "rm": (*world).rm, "move": (*world).move,
		"profile": (*world).profile, "hotset": (*world).hotSet,
		"gc":     func(w *world, _ *op) error { return w.answer(w.gc()) },
		"dry":    (*world).dry,
		"verify": func(w *world, _ *op) error { return w.sound(w.verify) },
		"usage":  (*world).usage, "compare": func(w *world, _ *op) error { return w.sound(w.compare) },
		"reopen": (*world).reopen, "repair": (*world).repairStep, "crash": (*world).crash,
		"heal": (*world).heal, "flip journal": (*world).flipJournal, "hide journal": (*world).hideJournal,
		"flip index": (*world).flipIndex,
	}
}

// perform runs one step with what belongs to it, and checks the store after it.
func (w *world) perform(o *op) error {
	w.n.steps.Add(1)
	var besides []*beside
	for i := range o.Beside {
		besides = append(besides, &beside{op: &o.Beside[i], done: make(chan struct{})})
	}
	w.mu.Lock()
	w.watch.op, w.watch.calls, w.watch.faults, w.watch.draw = o, 0, 0, true
	w.watch.besides = besides
	w.mu.Unlock()
	err := w.run(o)
	err = errors.Join(err, w.finish(besides))
	w.finishLater()
	w.mu.Lock()
	hurt := w.watch.faults
	w.watch.draw = false
	w.watch.op = nil
	w.mu.Unlock()
	w.closeEnded()
	for name, d := range w.drafts {
		if d.over {
			d.closeFiles()
			delete(w.drafts, name)
		}
	}
	if err == nil && hurt > 0 && w.s != nil {
		err = w.compare()
		if err == nil && w.p.Mode == faults && mix(w.p.Seed, uint64(o.ID))%2 == 0 {
			w.capture(storage.Call{Op: "none", Name: "after faults"}, -1, mix(w.p.Seed, uint64(o.ID), 9))
		}
	}
	if err != nil {
		return err
	}
	return w.checkImages()
}

func (w *world) run(o *op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if o.Do == "par" {
		return w.par(o)
	}
	if verbs[o.Do] == nil {
		return fmt.Errorf("step %d: no verb %q", o.ID, o.Do)
	}
	if err := verbs[o.Do](w, o); err != nil {
		return fmt.Errorf("step %d, %s: %w", o.ID, o.Do, err)
	}
	return nil
}

func (w *world) par(o *op) error {
	errs := make([]error, len(o.Threads))
	var wg sync.WaitGroup
	for i, ops := range o.Threads {
		wg.Go(func() {
			for k := range ops {
				if errs[i] == nil {
					errs[i] = w.run(&ops[k])
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// hurt says whether a storage call has failed in this step.
func (w *world) hurt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watch.faults > 0
}

// answer lets an error pass where a storage call has failed, or lies.
func (w *world) answer(err error) error {
	if err != nil && (w.hurt() || w.p.Mode == liars) {
		return nil
	}
	return err
}

// sound runs a check; where storage calls fail meanwhile, anything but a panic will do.
func (w *world) sound(check func() error) error { return w.answer(check()) }

// may lets errors of these classes pass.
func may(err error, classes ...index.Class) error {
	if err != nil && slices.Contains(classes, index.ClassOf(err)) {
		return nil
	}
	return err
}
