package fs

import (
	"errors"
	"io"
	iofs "io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gpucr/gpucr-fs/index"
)

// Inode numbers. A sealed file has base<<24 | 2 + its place in the sorted list of entries, where base is taken from the
// checkpoint's ID; base<<24 is the parent link and base<<24 | 1 the image directory. Files born in a draft have
// inoDraft and count up. inoRootView marks directories and parent links seen through the root, inoInstead what Instead
// shows.
const (
	inoRoot     = 1
	inoTop      = 2 // .checkpoints
	inoIdxBits  = 24
	inoScratch  = 1 << 63
	inoDraft    = 1 << 62
	inoRootView = 1 << 61
	inoInstead  = 1 << 60
	inoBaseMask = 1<<36 - 1
	maxIdx      = 1<<inoIdxBits - 1

	idxParent = 0
	idxDir    = 1
	idxFirst  = 2
)

// parentLink is the name of the symlink by which CRIU finds the images an incremental dump builds on.
const parentLink = "parent"

// image is one checkpoint as the mount shows it: sealed, or a draft that may become sealed while nodes refer to it.
type image struct {
	name string
	base uint64 // high bits of its inode numbers
	cat  *catalog
	// failed is the first error of a write to it as a draft, nil without one.
	failed atomic.Pointer[error]
	used   atomic.Int64 // catalog.clock at its last use; 0: the kernel was asked to forget it since

	sealing sync.Mutex // held over Seal and Abort, never together with mu's readers' work
	// inventory is held for reading while an inventory is written, and before sealing by the one who gives up what has
	// none.
	inventory sync.RWMutex

	mu         sync.RWMutex
	store      *index.Store
	id         string            // "" while a draft
	draft      *index.Draft      // nil once sealed or aborted
	cp         *index.Checkpoint // loaded when first needed; nil while a draft
	parent     string            // name that the checkpoint had to which the parent link leads; see parentName
	entries    map[string]*entry // by path; of a draft
	next       uint64            // index for the next of these
	numbers    []uint32          // indexes of what was born in a draft, in the order of the sealed checkpoint's entries
	files      int               // entries of the sealed checkpoint, once it was loaded
	view       *view             // below .checkpoints; made when first needed
	dumper     uint32            // pid of the one who wrote inventory.img, as seen from here; 0 when not known
	unfinished bool              // CRIU did not finish its dump: sealed only on request
}

// entry is a file, directory or symlink of an image. A file of a draft has one entry for as long as it exists, whatever
// its path.
type entry struct {
	img  *image
	ino  uint64
	typ  uint32 // S_IFMT bits
	path string // guarded by img.mu; "." is the image directory
	gone bool   // guarded by img.mu: unlinked
}

func typeOf(m iofs.FileMode) uint32 {
	switch {
	case m.IsDir():
		return syscall.S_IFDIR
	case m&iofs.ModeSymlink != 0:
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

// where gives the entry's path now and whether it still has one.
func (e *entry) where() (p string, ok bool) {
	e.img.mu.RLock()
	defer e.img.mu.RUnlock()
	return e.path, !e.gone
}

// stat describes the entry where it is now. ENOENT once it is unlinked.
func (e *entry) stat() (index.FileInfo, error) {
	var fi index.FileInfo
	err := e.inDraft(func(d *index.Draft, p string) (err error) {
		fi, err = d.Stat(p)
		return err
	})
	if !sealedNow(err) {
		return fi, err
	}
	return e.img.stat(e.path) // no rename reaches a sealed path
}

// inDraft runs fn on the entry's draft and path while no rename can move it. Class ReadOnly once the image is sealed.
func (e *entry) inDraft(fn func(d *index.Draft, p string) error) error {
	e.img.mu.RLock()
	defer e.img.mu.RUnlock()
	switch {
	case e.img.draft == nil:
		return errSealed
	case e.gone:
		return syscall.ENOENT
	}
	return fn(e.img.draft, e.path)
}

var errSealed = &index.Error{Class: index.ReadOnly, Op: "write", Err: errors.New("the checkpoint is sealed")}

func sealedNow(err error) bool { return index.ClassOf(err) == index.ReadOnly }

// change runs fn on the draft while nothing else looks at names; fn tells the table of entries what it did. Class
// ReadOnly once the image is sealed.
func (img *image) change(fn func(d *index.Draft) error) error {
	img.mu.Lock()
	defer img.mu.Unlock()
	if img.draft == nil {
		return errSealed
	}
	return fn(img.draft)
}

// ident is the ID of a sealed checkpoint, "" of a draft.
func (img *image) ident() string {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.id
}

// openDraft gives what a draft image writes to; nil once it is sealed.
func (img *image) openDraft() *index.Draft {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.draft
}

// sealedAs gives the ID, "" for a draft, and what is loaded. The store calls a draft sealed a moment before its image
// is: it waits for that.
func (img *image) sealedAs() (string, *index.Checkpoint) {
	if img.openDraft() != nil {
		img.sealing.Lock()
		defer img.sealing.Unlock()
	}
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.id, img.cp
}

// checkpoint gives the sealed checkpoint, loading it if need be. Class NotFound for a draft.
func (img *image) checkpoint() (*index.Checkpoint, error) {
	id, cp := img.sealedAs()
	if img.used.Swap(img.cat.clock.Add(1)) == 0 {
		img.cat.requestTidy()
	}
	if cp != nil {
		return cp, nil
	}
	cp, err := img.store.Checkpoint(img.name)
	if err != nil {
		return nil, err
	}
	if cp.Info().Name != img.name || cp.Info().ID != id {
		return nil, &index.Error{
			Class:      index.NotFound,
			Op:         "open",
			Checkpoint: img.name,
			Err:        errors.New("the checkpoint was removed"),
		}
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	img.cp, img.files = cp, len(cp.Entries())
	return cp, nil
}

// unload gives back what a sealed image can read again.
func (img *image) unload() {
	img.mu.Lock()
	defer img.mu.Unlock()
	img.cp = nil
}

// renumber keeps of a draft's entries, once it is sealed, only their numbers.
func (img *image) renumber() error {
	cp, err := img.checkpoint()
	if err != nil {
		return err
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	all := cp.Entries()
	numbers := make([]uint32, len(all))
	for i, fi := range all {
		e, err := img.entryLocked(fi)
		if err != nil {
			return err
		}
		numbers[i] = uint32(e.ino & maxIdx)
	}
	img.numbers, img.entries = numbers, nil
	return nil
}

// stat describes one path.
func (img *image) stat(p string) (index.FileInfo, error) {
	if d := img.openDraft(); d != nil {
		if fi, err := d.Stat(p); !sealedNow(err) {
			return fi, err
		}
	}
	cp, err := img.checkpoint()
	if err != nil {
		return index.FileInfo{}, err
	}
	return cp.Stat(p)
}

// look describes one path and gives its object, both of the same moment.
func (img *image) look(p string) (fi index.FileInfo, e *entry, err error) {
	err = img.change(func(d *index.Draft) error {
		if fi, err = d.Stat(p); err == nil {
			e, err = img.entryLocked(fi)
		}
		return err
	})
	if !sealedNow(err) {
		return fi, e, err
	}
	if fi, err = img.stat(p); err != nil {
		return fi, nil, err
	}
	e, err = img.entry(fi)
	return fi, e, err
}

// list gives the children of directory p, sorted by name.
func (img *image) list(p string) ([]index.FileInfo, error) {
	if d := img.openDraft(); d != nil {
		if l, err := d.ReadDir(p); !sealedNow(err) {
			return l, err
		}
	}
	cp, err := img.checkpoint()
	if err != nil {
		return nil, err
	}
	all := cp.Entries()
	prefix := ""
	if p != "." {
		prefix = p + "/"
		from, _ := slices.BinarySearchFunc(
			all, prefix, func(fi index.FileInfo, s string) int { return strings.Compare(fi.Path, s) },
		)
		all = all[from:]
	}
	var out []index.FileInfo
	for _, fi := range all {
		rest, ok := strings.CutPrefix(fi.Path, prefix)
		if !ok {
			break
		}
		if rest != "." && rest != "" && !strings.Contains(rest, "/") {
			out = append(out, fi)
		}
	}
	return out, nil
}

// entry gives the object for a path that is known to exist.
func (img *image) entry(fi index.FileInfo) (*entry, error) {
	img.mu.Lock()
	if img.entries != nil {
		defer img.mu.Unlock()
		return img.entryLocked(fi)
	}
	numbers := img.numbers
	img.mu.Unlock()
	e := &entry{img: img, path: fi.Path, typ: typeOf(fi.Mode)}
	if fi.Path == "." {
		e.ino = img.base | idxDir
		return e, nil
	}
	cp, err := img.checkpoint()
	if err != nil {
		return nil, err
	}
	i, ok := slices.BinarySearchFunc(
		cp.Entries(), fi.Path, func(fi index.FileInfo, s string) int { return strings.Compare(fi.Path, s) },
	)
	if !ok {
		return nil, syscall.ENOENT
	}
	if i+idxFirst > maxIdx {
		return nil, syscall.EOVERFLOW
	}
	e.ino = img.base | uint64(i+idxFirst)
	if numbers != nil {
		e.ino = img.base | uint64(numbers[i])
	}
	return e, nil
}

// entryLocked gives the object for a path of a draft. A file keeps its entry as long as the draft exists.
func (img *image) entryLocked(fi index.FileInfo) (*entry, error) {
	p := fi.Path
	e := &entry{img: img, path: p, typ: typeOf(fi.Mode)}
	if p == "." {
		e.ino = img.base | idxDir
		return e, nil
	}
	if old := img.entries[p]; old != nil {
		return old, nil
	}
	if img.next > maxIdx {
		return nil, syscall.EOVERFLOW
	}
	e.ino = img.base | img.next
	img.next++
	img.entries[p] = e
	return e, nil
}

// remove takes a file, symlink or empty directory out of a draft.
func (img *image) remove(p string) error {
	return img.change(func(d *index.Draft) error {
		if err := d.Remove(p); err != nil {
			return err
		}
		img.removedLocked(p)
		return nil
	})
}

// removedLocked forgets the entry at p after the draft dropped it.
func (img *image) removedLocked(p string) {
	if e := img.entries[p]; e != nil {
		e.gone = true
		delete(img.entries, p)
	}
}

// renamedLocked moves the entry at from, and all below it, to to.
func (img *image) renamedLocked(from, to string) {
	img.removedLocked(to)
	moved := map[string]*entry{}
	for p, e := range img.entries {
		if p == from || strings.HasPrefix(p, from+"/") {
			delete(img.entries, p)
			e.path = to + p[len(from):]
			moved[e.path] = e
		}
	}
	for p, e := range moved {
		img.entries[p] = e
	}
}

// readAll reads a small file of a sealed checkpoint.
func (img *image) readAll(p string) ([]byte, syscall.Errno) {
	cp, err := img.checkpoint()
	if err != nil {
		return nil, errnoOf(err)
	}
	f, err := cp.Open(p)
	if err != nil {
		return nil, errnoOf(err)
	}
	defer f.Close()
	data := make([]byte, f.Size())
	if _, err := f.ReadAt(data, 0); err != nil && err != io.EOF {
		return nil, syscall.EIO
	}
	return data, 0
}

// parentName gives the checkpoint the parent link leads to, by the name that it has now; "" without one.
func (img *image) parentName() string {
	had, id := img.parentWas(), img.ident()
	if had == "" {
		return ""
	}
	if d := img.openDraft(); d != nil {
		id = d.ID()
	}
	if name := img.store.ParentName(id); name != "" {
		return name
	}
	return had
}

// parentWas gives the name of that checkpoint when this image was first seen.
func (img *image) parentWas() string {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.parent
}

// setParent sets, or with "" removes, the parent link of a draft.
func (img *image) setParent(name string) error {
	return img.change(func(d *index.Draft) error {
		if err := d.SetParent(name); err != nil {
			return err
		}
		img.parent = name
		return nil
	})
}

// complete says whether a draft holds a whole dump, once nobody writes to it any more: CRIU makes inventory.img after
// everything a restore needs (cr-dump.c, cr_dump_tasks), and closes others after it (cr_dump_finish). Engines keep the
// images in a folder named checkpoint.
func (img *image) complete() bool {
	d := img.openDraft()
	if d == nil || img.isUnfinished() {
		return false
	}
	return index.NeedInventory("seal", img.name, d.Stat) == nil
}

// unlessComplete runs fn unless the draft is complete, and keeps it from becoming so meanwhile: CRIU ends the processes
// once it has written its inventory.
func (img *image) unlessComplete(fn func() error) (complete bool, err error) {
	img.inventory.Lock()
	defer img.inventory.Unlock()
	if img.complete() {
		return true, nil
	}
	return false, fn()
}

var inventories = index.Inventories()

// flush stores what CRIU has written so far. When its inventory is written, CRIU is about to end the processes, and
// lets them go on if that write fails (bfd_flush_images in cr_dump_finish): the last moment to tell it.
func (img *image) flush() error {
	if d := img.openDraft(); d != nil {
		return d.Flush()
	}
	return nil // the write fails
}

// wroteInventory notes the pid of the CRIU that dumps.
func (img *image) wroteInventory(pid uint32) {
	img.mu.Lock()
	defer img.mu.Unlock()
	img.dumper = pid
}

// markUnfinished notes that CRIU did not finish its dump.
func (img *image) markUnfinished() {
	img.mu.Lock()
	defer img.mu.Unlock()
	img.unfinished = true
}

func (img *image) isUnfinished() bool {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.unfinished
}

// dumping tells whether the process that wrote the inventory still runs. It is true while that is not known.
func (img *image) dumping() bool {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.dumper == 0 || runs(img.dumper)
}

// loaded says whether describing the image costs no read.
func (img *image) loaded() bool {
	img.mu.RLock()
	defer img.mu.RUnlock()
	return img.cp != nil
}
