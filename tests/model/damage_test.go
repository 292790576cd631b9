package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// withoutFaults runs a step without crashes and faults: what it does to files is enough.
func (w *world) withoutFaults(fn func() error) error {
	w.mu.Lock()
	draw := w.watch.draw
	w.watch.draw = false
	w.mu.Unlock()
	err := fn()
	w.mu.Lock()
	w.watch.draw = draw
	w.older, w.base = nil, ""
	w.mu.Unlock()
	return err
}

// packFiles gives the files of the packs whose names end so, ascending.
func (w *world) packFiles(ext string) []string {
	names, err := w.mem.List(memDir + "/packs")
	if err != nil {
		panic(err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ext) })
}

// change changes a byte of a file of the packs from what it was; false if it is not that any more, or not there.
func (w *world) change(name string, off int64, was, to byte) bool {
	f, err := w.mem.Open(memDir+"/packs/"+name, storage.Write)
	if err != nil {
		return false
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, off); err != nil || b[0] != was {
		return false
	}
	if _, err := f.WriteAt([]byte{to}, off); err != nil {
		panic(err)
	}
	return f.Sync() == nil
}

func (w *world) byteAt(name string, off int64) byte {
	b, err := storage.ReadFile(w.mem, memDir+"/packs/"+name, 1<<30)
	if err != nil {
		panic(err)
	}
	return b[off]
}

func (w *world) sizeOf(name string) int64 {
	st, err := w.mem.Stat(memDir + "/packs/" + name)
	if err != nil {
		panic(err)
	}
	return st.Size
}

// heal damages a slot, lets verify find it, and imports what was damaged again: that must make everything whole but
// files that were not written from beginning to end, for they are cut elsewhere than the copy.
func (w *world) heal(o *op) error {
	return w.withoutFaults(func() error {
		r := rand.New(rand.NewPCG(o.Seed, 5))
		packs := w.packFiles(".pack")
		if len(packs) == 0 || w.p.Mode == liars {
			return nil
		}
		name := packs[r.IntN(len(packs))]
		size := w.sizeOf(name)
		if size == 0 {
			return nil
		}
		off := r.Int64N(size)
		was := w.byteAt(name, off)
		if err := w.reopen(nil); err != nil { // drafts would keep what is damaged from being collected
			return err
		}
		w.change(name, off, was, was^0x10)
		res, err := w.s.Verify(context.Background(), index.VerifyOptions{})
		if err != nil {
			return fmt.Errorf("verify of a damaged slot: %w", err)
		}
		if r.IntN(2) == 0 {
			if err := w.reopen(nil); err != nil {
				return err
			}
		}
		if err := w.compareDamaged(res); err != nil {
			return err
		}
		// Its content comes by again.
		var fresh []string
		for i, p := range res.Problems {
			if p.Checkpoint == "" {
				continue
			}
			copied := fmt.Sprintf("h%d-%d", o.ID, i)
			fresh = append(fresh, copied)
			if err := w.importCopy(&op{Ckpt: copied, To: p.Checkpoint}); err != nil {
				return fmt.Errorf("storing %s again: %w", p.Checkpoint, err)
			}
		}
		if err := w.dropUnhealed(res); err != nil {
			return err
		}
		if err := w.compare(); err != nil {
			return fmt.Errorf("a chunk was damaged and stored again, and now: %w", err)
		}
		if err := w.verifyNames(); err != nil {
			return err
		}
		for _, name := range fresh {
			if err := w.rm(&op{Ckpt: name}); err != nil {
				return err
			}
		}
		if err := w.gc(); err != nil {
			return fmt.Errorf("after healing: %w", err)
		}
		return w.compare()
	})
}

// compareDamaged is compare where checkpoints that verify has named may not be readable.
func (w *world) compareDamaged(res index.VerifyResult) error {
	named := map[string]bool{}
	for _, p := range res.Problems {
		named[p.Checkpoint] = true
	}
	list, err := w.s.Names(context.Background())
	if err != nil {
		return err
	}
	for _, info := range list {
		if info.State != index.Sealed {
			continue
		}
		w.m.mu.Lock()
		e := w.m.names[info.Name]
		w.m.mu.Unlock()
		err := w.compareOne(e, info)
		if err != nil && (!named[info.Name] || index.ClassOf(err) != index.Corrupt) {
			return fmt.Errorf("checkpoint %s, after a slot was damaged: %w", info.Name, err)
		}
	}
	return nil
}

// dropUnhealed removes checkpoints whose content is not known well enough to be stored again, and those with damage in
// a file that may be cut elsewhere than its copy.
func (w *world) dropUnhealed(res index.VerifyResult) error {
	for _, p := range res.Problems {
		w.m.mu.Lock()
		e := w.m.names[p.Checkpoint]
		known := e == nil || len(e.versions) == 1
		if e != nil && known {
			for _, contents := range e.versions[0].files {
				known = known && len(contents) == 1
			}
			known = known && !e.versions[0].cut[p.File]
		}
		w.m.mu.Unlock()
		if !known {
			if err := w.rm(&op{Ckpt: p.Checkpoint}); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyNames expects that verify names no checkpoint.
func (w *world) verifyNames() error {
	res, err := w.s.Verify(context.Background(), index.VerifyOptions{})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, p := range res.Problems {
		if p.Checkpoint != "" {
			return fmt.Errorf("verify finds %+v", p)
		}
	}
	return nil
}

// look does what people do with a store that may be damaged. It gives whether the store was rebuilt.
func (w *world) look(way int) (rebuilt bool, err error) {
	if way == 3 {
		_, err := index.Repair(context.Background(), w.dir, w.options())
		return true, err
	}
	if err := w.open(false); err != nil {
		if index.ClassOf(errors.Unwrap(err)) != index.Corrupt {
			return false, fmt.Errorf("not as damage: %w", err)
		}
		return false, nil
	}
	if err := w.compare(); err != nil {
		return false, err
	}
	switch way {
	case 1:
		_, err = w.s.Verify(context.Background(), index.VerifyOptions{})
	case 2:
		w.s.GC(context.Background(), index.GCOptions{}) // it may refuse
		err = w.compare()
	}
	return false, errors.Join(err, w.close())
}

// flipJournal damages a byte of a journal, looks, and puts the byte back: nothing may be lost.
func (w *world) flipJournal(o *op) error {
	return w.withoutFaults(func() error {
		r := rand.New(rand.NewPCG(o.Seed, 6))
		journals := w.packFiles(".journal")
		if len(journals) == 0 || w.p.Mode == liars {
			return nil
		}
		name := journals[len(journals)-1]
		if r.IntN(3) == 0 {
			name = journals[r.IntN(len(journals))]
		}
		if err := w.close(); err != nil {
			return err
		}
		size := w.sizeOf(name)
		if size == 0 { // it could neither be begun nor removed
			return w.open(false)
		}
		off := max(0, size-1-r.Int64N(min(size, 400)))
		if r.IntN(3) == 0 {
			off = r.Int64N(size)
		}
		was := w.byteAt(name, off)
		to := was ^ byte(1+r.IntN(255))
		w.change(name, off, was, to)
		rebuilt, err := w.look(r.IntN(4))
		if err != nil {
			return fmt.Errorf("byte %d of journal %s (%d bytes) was damaged: %w", off, name, size, err)
		}
		back := !rebuilt && w.change(name, off, to, was)
		if err := w.open(false); err != nil {
			return fmt.Errorf("byte %d of journal %s (%d bytes) was damaged, put back %v: %w",
				off, name, size, back, err)
		}
		if err := w.compare(); err != nil {
			return fmt.Errorf("byte %d of journal %s (%d bytes) was damaged, put back %v: %w",
				off, name, size, back, err)
		}
		if err := w.verifyNames(); err != nil {
			return fmt.Errorf("byte %d of journal %s (%d bytes) was damaged, put back %v: %w",
				off, name, size, back, err)
		}
		return nil
	})
}

// hideJournal takes a journal away, looks, and puts it back: nothing may be lost.
func (w *world) hideJournal(o *op) error {
	return w.withoutFaults(func() error {
		r := rand.New(rand.NewPCG(o.Seed, 7))
		journals := w.packFiles(".journal")
		if len(journals) == 0 || w.p.Mode == liars {
			return nil
		}
		name := journals[r.IntN(len(journals))]
		full := memDir + "/packs/" + name
		if err := w.close(); err != nil {
			return err
		}
		content, err := storage.ReadFile(w.mem, full, 1<<30)
		if err != nil {
			return err
		}
		if err := errors.Join(w.mem.Remove(full), w.mem.SyncDir(memDir+"/packs")); err != nil {
			return err
		}
		rebuilt, err := w.look([]int{0, 1, 3}[r.IntN(3)])
		if err != nil {
			return fmt.Errorf("journal %s was away: %w", name, err)
		}
		w.hidden = w.hidden || rebuilt
		if !rebuilt {
			err := errors.Join(storage.WriteSynced(w.mem, full, content), w.mem.SyncDir(memDir+"/packs"))
			if err != nil {
				return err
			}
		}
		err = w.open(false)
		if err == nil {
			err = w.compare()
		}
		if err == nil {
			err = w.verifyNames()
		}
		if err != nil {
			return fmt.Errorf("journal %s was away and has come back, or was written anew: %w", name, err)
		}
		return nil
	})
}

// flipIndex damages a byte of the index, looks, and rebuilds it: nothing may be lost.
func (w *world) flipIndex(o *op) error {
	return w.withoutFaults(func() error {
		if w.p.Mode == liars {
			return nil
		}
		if err := w.close(); err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(o.Seed, 8))
		names, err := filepath.Glob(filepath.Join(w.dir, "index", "*"))
		if err != nil || len(names) == 0 {
			return w.openAgain()
		}
		name := names[r.IntN(len(names))]
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if len(b) > 0 {
			off := r.IntN(min(len(b), 20000))
			b[off] ^= byte(1 + r.IntN(255))
			if err := os.WriteFile(name, b, 0o600); err != nil {
				return err
			}
		}
		what := fmt.Sprintf("a byte of %s was damaged", filepath.Base(name))
		if err := w.open(false); err == nil {
			list, err := w.s.Names(context.Background())
			if err != nil {
				return err
			}
			for _, info := range list {
				w.m.mu.Lock()
				e := w.m.names[info.Name]
				w.m.mu.Unlock()
				if info.State != index.Sealed || e == nil {
					continue // of a record of old, maybe
				}
				if err := w.compareOne(e, info); err != nil && index.ClassOf(err) != index.Corrupt && e.may() {
					return fmt.Errorf("%s: checkpoint %s: %w", what, info.Name, err)
				}
			}
			if err := w.close(); err != nil {
				return err
			}
		}
		if err := w.repair(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := w.open(false); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := w.compare(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}
