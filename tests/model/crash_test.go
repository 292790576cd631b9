package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/storage"
)

var errNoSpace = unix.ENOSPC

// indexSynced notes that a crash can't bring back an index older than this.
func (w *world) indexSynced(dir string) {
	if dir != filepath.Join(w.dir, "index") {
		return // the index that a repair is building
	}
	w.syncing.Lock() // a commit and a compaction sync it at once: the later copy is to count
	defer w.syncing.Unlock()
	w.copies.RLock()
	defer w.copies.RUnlock()
	copied := w.copyIndex()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced++
	w.older, w.base, w.inode = []string{copied}, copied, folderOf(dir)
}

// folderOf tells the folder of an index from another one that was put in its place.
func folderOf(dir string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0
	}
	return st.Ino
}

// indexWrote looks now and then at what a crash leaves of an index that was written to and not synced.
func (w *world) indexWrote(dir string) {
	w.mu.Lock()
	o, n := w.watch.op, w.watch.calls
	draw := w.watch.draw && w.p.Mode == crashes && o != nil && !o.NoFaults && dir == filepath.Join(w.dir, "index")
	w.mu.Unlock()
	if !draw {
		return
	}
	if luck := mix(w.p.Seed, uint64(o.ID), uint64(n), 3); luck%4 == 0 {
		w.capture(storage.Call{Op: "write", Name: "index"}, n, luck>>8)
	}
}

// capture takes the image of a moment, with everything as it is just before the call c, for a look at it later.
func (w *world) capture(c storage.Call, n int, luck uint64) {
	img := w.moment()
	if img == nil {
		return
	}
	img.call, img.n, img.draw = c, n, luck
	w.mu.Lock()
	defer w.mu.Unlock()
	w.images = append(w.images, img)
}

// moment gives an image of this moment; nil if the index changes too fast. The copy of the index comes first: it may
// be older than the files beside it, not newer. Commits go on meanwhile, and one whose journal the image lacks must not
// be marked in the copy.
func (w *world) moment() *image {
	w.copies.RLock()
	defer w.copies.RUnlock()
	for range 3 {
		now := folderOf(filepath.Join(w.dir, "index"))
		w.mu.Lock()
		synced := w.synced
		w.mu.Unlock()
		copied := w.copyIndex()
		if copied == "" {
			return nil
		}
		w.m.mu.Lock()
		w.mu.Lock()
		var img *image
		if w.synced == synced && now == folderOf(filepath.Join(w.dir, "index")) {
			if now != w.inode { // a new index was put in the place of the old one, durably
				w.older, w.base, w.inode = nil, "", now
			}
			w.older = append(w.older, copied)
			img = &image{files: w.mem.Snapshot(), index: slices.Clone(w.older), base: w.base, m: w.m.clone()}
		}
		w.mu.Unlock()
		w.m.mu.Unlock()
		if img != nil {
			return img
		}
	}
	return nil
}

// copyIndex copies the index as a crash would leave it; "" if it changes too fast.
func (w *world) copyIndex() string {
	w.mu.Lock()
	to := w.folder()
	w.mu.Unlock()
	from := filepath.Join(w.dir, "index")
	for range 5 {
		before := listing(from)
		err := copyFolder(from, to)
		if err == nil && before == listing(from) {
			return to
		}
		os.RemoveAll(to)
	}
	return ""
}

// listing tells which tables and logs an index has: while that does not change a copy is of one moment, but for the
// ends of its logs.
func listing(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(e.Name())
		if info, err := e.Info(); err == nil && e.Name() == "MANIFEST" {
			fmt.Fprint(&b, info.Size())
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// copyFolder copies files, without their holes. The value log comes last: the other log refers to it.
func copyFolder(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int {
		late := func(e fs.DirEntry) int { return strings.Count(e.Name(), ".vlog") }
		return late(a) - late(b)
	})
	for _, e := range entries {
		if e.Name() == "LOCK" {
			continue
		}
		if err := copySparse(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copySparse(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	var buf []byte
	for off := int64(0); ; {
		data, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if err != nil {
			break
		}
		end, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if int64(cap(buf)) < end-data {
			buf = make([]byte, end-data)
		}
		n, err := in.ReadAt(buf[:end-data], data)
		if n == 0 {
			return err
		}
		if _, err := out.WriteAt(buf[:n], data); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// after gives the world that a crash at the image leaves, not opened yet, and whether its index is gone.
func (w *world) after(img *image, luck uint64) (v *world, gone bool, what string, err error) {
	v = &world{p: w.p, tmp: w.tmp, n: w.n, hidden: w.hidden, m: img.m.clone(), drafts: map[string]*draft{}}
	w.mu.Lock()
	v.dir = w.folder()
	w.mu.Unlock()
	v.tmp = filepath.Join(v.dir, "tmp")
	which, base := len(img.index)-1, ""
	switch way := luck % 16; {
	case way < 3:
		v.mem, what = img.files.Now(), "the process was killed"
	case way < 9:
		v.mem, what = img.files.Crash(luck), "power cut"
	case way < 12:
		v.mem, what = img.files.Crash(luck), "power cut, older index"
		which = int(luck >> 8 % uint64(len(img.index)))
	case way < 14 && img.base != "":
		v.mem, what = img.files.Crash(luck), "power cut, and not all is there of the index's logs"
		base = img.base
	case way < 14:
		v.mem, what = img.files.Crash(luck), "power cut"
	default:
		v.mem, what = img.files.Crash(luck), "power cut, index lost"
		which, gone = -1, true
	}
	if err := os.MkdirAll(filepath.Join(v.dir, "index"), 0o700); err != nil {
		return nil, false, "", err
	}
	if which >= 0 {
		err = copyFolder(img.index[which], filepath.Join(v.dir, "index"))
		left, _ := os.ReadDir(filepath.Join(v.dir, "index"))
		gone = len(left) == 0 // a repair was about to replace it
		if base != "" {
			err = errors.Join(err, unsyncLogs(filepath.Join(v.dir, "index"), base, luck>>12))
		}
	}
	return v, gone, what, err
}

// unsyncLogs takes from some logs of an index what was written to them since the copy base of it was made. Badger
// syncs tables whenever it makes them, its logs when it is told to, and the kernel writes back what it likes of them.
func unsyncLogs(dir, base string, luck uint64) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.*"))
	for _, log := range logs {
		if ext := filepath.Ext(log); ext != ".mem" && ext != ".vlog" {
			continue
		}
		if luck >>= 1; luck&1 == 0 {
			continue
		}
		info, e := os.Stat(log)
		if e == nil {
			e = copySparse(filepath.Join(base, filepath.Base(log)), log)
		}
		if errors.Is(e, fs.ErrNotExist) { // it is younger: the disk has its name and its size
			e = errors.Join(os.Truncate(log, 0), os.Truncate(log, info.Size()))
		}
		err = errors.Join(err, e)
	}
	return err
}

// tidy drops copies of the index that nobody needs any more. Badger may sync its index, which is copied then, after the
// step that wrote to it.
func (w *world) tidy() {
	w.copies.Lock()
	defer w.copies.Unlock()
	w.mu.Lock()
	older := slices.Clone(w.older)
	w.mu.Unlock()
	entries, err := os.ReadDir(w.tmp)
	if err != nil {
		return
	}
	for _, e := range entries {
		p := filepath.Join(w.tmp, e.Name())
		if p != w.dir && !slices.Contains(older, p) {
			os.RemoveAll(p)
		}
	}
}

// checkImages opens and compares the store as crashes at the images of the last step would leave it.
func (w *world) checkImages() error {
	w.mu.Lock() // a worker of the store may be taking one more
	images := w.images
	w.images = nil
	w.mu.Unlock()
	defer w.tidy()
	for _, img := range images {
		if err := w.checkImage(img, 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) checkImage(img *image, depth int) error {
	w.n.crashes.Add(1)
	luck := mix(w.p.Seed, img.draw, uint64(depth))
	v, gone, what, err := w.after(img, luck)
	if err != nil {
		return err
	}
	defer os.RemoveAll(v.dir)
	wrap := func(err error) error {
		return fmt.Errorf("crash before storage call %d of the step (%s %s at %d), %s: %w",
			img.n, img.call.Op, img.call.Name, img.call.Off, what, err)
	}
	if depth == 0 && w.p.Mode == crashes && luck>>16%6 == 0 {
		v.watch.op = &op{ID: int(luck >> 40)}
		v.watch.draw = true
		v.older = []string{} // a crash while it is recovered finds what that has made of the index
	}
	err = v.recovered(gone, luck>>20)
	if e := v.close(); err == nil {
		err = e
	}
	if err != nil {
		return wrap(err)
	}
	for _, again := range v.images {
		if err := v.checkImage(again, depth+1); err != nil {
			return wrap(err)
		}
	}
	return nil
}

// recovered opens the store after a crash and compares it, then does what often follows.
func (v *world) recovered(gone bool, luck uint64) error {
	if err := v.open(gone); err != nil {
		return err
	}
	v.watch.draw = false
	if err := v.compare(); err != nil {
		return err
	}
	switch luck % 8 {
	case 0, 1:
		if err := v.gc(); err != nil {
			return err
		}
		if err := v.compare(); err != nil {
			return fmt.Errorf("after gc: %w", err)
		}
		return v.verify()
	case 2:
		return v.verify()
	case 3:
		return v.reopened()
	}
	return nil
}

// reopened closes and opens the store: that must change nothing.
func (v *world) reopened() error {
	if err := v.close(); err != nil {
		return err
	}
	v.watch.changed, v.watch.list = nil, true
	err := v.open(false)
	v.watch.list = false
	if err != nil {
		return err
	}
	if len(v.watch.changed) > 0 {
		return fmt.Errorf("opening it a second time changed files: %v", v.watch.changed)
	}
	return v.compare()
}
