package roots

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// hotName is the folder of hot sets: for a checkpoint, at most one file named by its ID, whose content means
// something to those who stored it. It repeats what packs hold, in another order; it is not synced, and may be lost
// or deleted at any time.
const (
	HotFolder = "hot"
	hotTemp   = ".new"
)

// hotPath gives the path of a hot set. An id names a file here, so nothing but an id may come this far.
func (s *Set) hotPath(id string) string {
	if !manifest.ValidID(id) {
		panic("index: not the id of a checkpoint: " + id)
	}
	return filepath.Join(s.o.Dir, HotFolder, id)
}

// isHotName says whether a file is a hot set, or one half written: of what id.
func isHotName(name string) (id string, temp, ok bool) {
	id, rest, _ := strings.Cut(name, "-")
	temp = strings.HasSuffix(rest, hotTemp)
	return id, temp, manifest.ValidID(id) && (temp || name == id)
}

// HotFile is an open hot set.
type HotFile struct {
	io.ReaderAt
	io.Closer
	size int64
}

// Size gives its length in bytes.
func (f *HotFile) Size() int64 { return f.size }

// hotPurpose is what the hot set of a checkpoint is encrypted for.
func hotPurpose(id string) string { return cipher.ForHotSet + " " + id }

// HotSet opens the hot set of a sealed checkpoint. Class NotFound when there is none. It need not be what was stored:
// the reader has to check it.
func (s *Set) HotSet(ref string) (*HotFile, error) {
	const op = "open hot set"
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.hotPath(r.ID), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: r.Name(), Err: errors.New("no hot set")}
	}
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	out, err := s.openHot(r.ID, f)
	if err != nil {
		f.Close()
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: r.Name(), Err: err}
	}
	return out, nil
}

func (s *Set) openHot(id string, f *os.File) (*HotFile, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	c := s.chunks.Packs.Coder()
	if c == nil {
		return &HotFile{f, f, st.Size()}, nil
	}
	sealed, err := c.OpenFile(f, st.Size(), hotPurpose(id))
	if err != nil {
		return nil, err
	}
	return &HotFile{sealed, f, sealed.Size()}, nil
}

// SetHotSet stores the hot set of a sealed checkpoint, some size bytes that write writes, in place of an earlier
// one. Class NoSpace when that would leave less free than the store's floor. A new profile and the checkpoint's
// removal delete it.
func (s *Set) SetHotSet(ref string, size int64, write func(io.Writer) error) (err error) {
	if err := s.chunks.MayWrite("write hot set"); err != nil {
		return err
	}
	const op = "write hot set"
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if free, err := s.chunks.Packs.Free(); err != nil || free-size < s.o.FreeFloor {
		return &fault.Error{Class: fault.NoSpace, Op: op, Checkpoint: r.Name(),
			Err: errors.Join(errors.New("the disk is nearly full"), err)}
	}
	if err := os.MkdirAll(filepath.Join(s.o.Dir, HotFolder), 0o700); err != nil {
		return fault.Classify(op, err)
	}
	f, err := os.CreateTemp(filepath.Join(s.o.Dir, HotFolder), r.ID+"-*"+hotTemp)
	if err != nil {
		return fault.Classify(op, err)
	}
	if c := s.chunks.Packs.Coder(); c != nil {
		w := c.Writer(f, hotPurpose(r.ID))
		err = errors.Join(write(w), w.Close(), f.Close())
	} else {
		err = errors.Join(write(f), f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && (s.roots[r.ID] != r || r.removed) {
		err = NotFound(op, r.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), s.hotPath(r.ID))
	}
	if err != nil {
		return errors.Join(fault.Classify(op, err), os.Remove(f.Name()))
	}
	return nil
}

// dropHotSet deletes the hot set of a checkpoint, if there is one.
func (s *Set) dropHotSet(id string) error {
	if err := os.Remove(s.hotPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// SweepHotSets deletes what a crash left: hot sets half written, or of checkpoints that are gone.
func (s *Set) SweepHotSets() {
	entries, err := os.ReadDir(filepath.Join(s.o.Dir, HotFolder))
	if err != nil {
		return // there is no folder before the first one
	}
	for _, e := range entries {
		id, temp, ok := isHotName(e.Name())
		if !ok || s.roots[id] != nil && !temp {
			continue
		}
		if err := os.Remove(filepath.Join(s.o.Dir, HotFolder, e.Name())); err != nil {
			s.log.Warn("could not delete a hot set of no checkpoint", "file", e.Name(), "error", err)
		}
	}
}
