package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// This file is how the index outlives a full disk.
//
// Badger writes through mappings of sparse files, and to its manifest without looking whether all of it was taken.
// Preallocating is not in its options, and who fills the disk does not keep to our floor. So:
//
//   - A write that finds no room goes to memory instead (package sigbus), and removes the file "SOUND" from the index.
//     Badger goes on, and so do readers: what they find is right, only the disk lacks it. If the disk has
//     refused a read, they do not find what lay there. No slot is given back for that, as nothing can be written.
//   - From then on every write fails with pack.ErrNoSpace. What commits held is kept by their callers, as after any
//     failed commit.
//   - The first write that finds room again copies the whole index, drafts included, into a new one and exchanges the
//     two (mend), unless a part of it cannot be read.
//   - A process that ends before leaves an index without SOUND. The next process that opens the store builds it
//     anew from the journals, which are the truth.
//
// The same is done when Badger reports that it could not write, whatever the reason: what a failed write or sync has
// left is not to be trusted. A lack of descriptors is looked for before, so that nothing is begun.

// soundName is the file in the index folder that says that the disk has all that was written there.
const soundName = "SOUND"

// openRoom is how much must be free in bytes to open an index: Badger makes three files and writes their first pages.
const openRoom = 1 << 20

// copyRoom is what must be free beyond the index's own size and the floor before it is copied.
const copyRoom = 16 << 20

// Room tells of the disk that the index is on.
type Room struct {
	Dir   string // any folder of it that exists
	Floor int64  // bytes that are to stay free
}

// free gives the bytes that this process could still write, the superuser's reserve included.
func (r Room) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.Dir, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", r.Dir, err)
	}
	return int64(st.Bfree) * st.Bsize, nil
}

// out is the count of users while the index is being exchanged, and after an exchange that failed.
const out = -1

// enter gives Badger to its caller until leave. It may be entered again by the one who is in.
func (d *DB) enter() (*badger.DB, error) {
	for {
		switch n := d.in.Load(); {
		case n == out:
			if err := d.exchanged(); err != nil {
				return nil, err
			}
		case d.in.CompareAndSwap(n, n+1):
			return d.b, nil
		}
	}
}

// exchangeAgain is how long one that failed is not tried again, but for want of descriptors or memory: each try reads
// all tables, and whoever asks the index for something makes one.
const exchangeAgain = time.Second

// exchanged waits for an exchange. One that failed is tried again: it may have been for a lack that has passed.
func (d *DB) exchanged() error {
	d.turn.Lock()
	defer d.turn.Unlock()
	if d.in.Load() != out {
		return nil
	}
	if d.ended.Load() { // nobody would close it again
		return badger.ErrDBClosed
	}
	if d.failed != nil && time.Since(d.failedAt) < exchangeAgain {
		return d.failed
	}
	d.failed = nil
	err := d.exchange()
	if err == nil || starved(err) {
		return err
	}
	if !Lacks(err) && !errors.Is(err, pack.ErrNoSpace) {
		err = fmt.Errorf("%w: the index could not be opened again after the disk was full: %w", ErrDamaged, err)
	}
	d.failed, d.failedAt = err, time.Now()
	return err
}

func (d *DB) leave() { d.in.Add(-1) }

// condemn notes that the disk lacks what Badger wrote.
func (d *DB) condemn() {
	d.bad.Store(true)
	_ = os.Remove(filepath.Join(d.dir, soundName)) // gone already, if the handler was there first
}

// Cut says whether it does.
func (d *DB) Cut() bool { return d.bad.Load() || d.watch.Load().Faulted() }

// written turns the end of a write into an error if the disk did not take it. A log that could not be opened to be
// synced tells nothing of the disk; what Badger could not open has gone through its log.
func (d *DB) written(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	if err != nil {
		d.condemn()
		return err
	}
	if d.Cut() {
		return d.NoRoom("")
	}
	return nil
}

// NoRoom gives the error of those who cannot write; why follows the word "written".
func (d *DB) NoRoom(why string) error {
	free, _ := d.room.free() // 0 where the file system does not say
	return fmt.Errorf("%w: the index could not be written%s; %d MiB are free on its file system, %d MiB are kept free",
		pack.ErrNoSpace, why, free>>20, d.room.Floor>>20)
}

// ready fails with pack.ErrNoSpace while the index cannot be written.
func (d *DB) ready() error {
	if !d.Cut() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.enter(); err != nil { // ends an exchange that failed
		return err
	}
	d.leave()
	if !d.Cut() {
		return nil
	}
	return d.mend()
}

// mend copies the index to where all of it is on disk. Call with mu held.
func (d *DB) mend() error {
	size, err := Allocated(d.dir)
	if err != nil {
		return err
	}
	free, err := d.room.free()
	if err != nil {
		return err
	}
	if free < size+copyRoom+d.room.Floor {
		return d.NoRoom("")
	}
	if err := d.mayCopy(); err != nil {
		return err
	}
	fresh := d.dir + ".new"
	if err := d.copyTo(fresh); starved(err) {
		return errors.Join(err, os.RemoveAll(fresh))
	} else if err != nil {
		return errors.Join(d.NoRoom(", nor copied: "+err.Error()), os.RemoveAll(fresh))
	}
	if err := d.mayCopy(); err != nil { // the copy would lack what could not be read meanwhile
		return errors.Join(err, os.RemoveAll(fresh))
	}
	d.turn.Lock()
	defer d.turn.Unlock()
	if d.ended.Load() { // nobody would close it again
		return errors.Join(badger.ErrDBClosed, os.RemoveAll(fresh))
	}
	// Nobody may be in while it is exchanged. Readers come and go; a scan takes seconds.
	for !d.in.CompareAndSwap(0, out) {
		time.Sleep(100 * time.Microsecond)
	}
	if err := d.exchange(); err != nil {
		return err
	}
	d.l.Info("the index was written anew after the disk had been full", "bytes", size)
	return nil
}

// mayCopy fails where a part of the index cannot be read. An iteration ends there without an error.
func (d *DB) mayCopy() error {
	err := d.whole()
	if err == nil || Lacks(err) {
		return err
	}
	return fmt.Errorf("%w: a part of the index cannot be read, and nothing is written to it any more: it is built "+
		"anew when the store is opened the next time: %w", ErrDamaged, err)
}

// whole fails where a table cannot be read as it was written. The fault that package sigbus met may have been a read
// that the disk refused: Badger then does not find the keys that lay there, and gives no error.
func (d *DB) whole() (err error) {
	defer damageOfPanic(&err) // the check panics over what it finds
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	return b.VerifyChecksum()
}

// Whole fails where a part of the index cannot be read: what it says is missing may be there. Who is about to give back
// what nobody is known to need asks it, after all look-ups. It reads all tables twice, as Badger sees them and as they
// lie on the disk with what leads to their blocks: 70 MB a million chunks. It takes the memory of the largest table.
func (d *DB) Whole() error {
	err := d.whole()
	if err == nil && !d.Cut() { // else the disk lacks what Badger has
		err = d.wholeOnDisk()
	}
	if err == nil || Lacks(err) {
		return err
	}
	return fmt.Errorf("%w: a part of the index cannot be read: %w", ErrDamaged, err)
}

// wholeOnDisk fails where the file of a table cannot be read as it was written. Badger merges tables meanwhile, and
// removes those that it has no more use for.
func (d *DB) wholeOnDisk() error {
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	var buf []byte
	for _, t := range b.Tables() {
		buf, err = checkTable(d.dir, t.ID, buf)
		if err == nil {
			continue
		}
		inUse := func(now badger.TableInfo) bool { return now.ID == t.ID }
		if slices.ContainsFunc(b.Tables(), inUse) {
			return err
		}
	}
	return nil
}

// exchange closes Badger, puts the copy in its place and opens that. Where it fails it goes on from there when it is
// called again. Call with turn held and nobody in; it lets them in.
func (d *DB) exchange() error {
	if err := d.close(); errors.Is(err, ErrUnwritten) { // it goes on trying, in this folder
		if starved(err) {
			return err
		}
		return d.NoRoom(", nor closed")
	}
	d.b = nil
	fresh := d.dir + ".new"
	if there, err := IsSound(fresh); err != nil {
		return err
	} else if there {
		if err := Swap(d.dir, fresh); err != nil {
			return err
		}
	} else if err := errors.Join(storage.Disk{}.SyncDir(filepath.Dir(d.dir)), os.RemoveAll(d.dir+".old")); err != nil {
		return err // Swap failed after its renames
	}
	d.bad.Store(false)
	d.owes.Store(false)
	if err := d.open(); err != nil {
		return err
	}
	d.in.Store(0)
	return nil
}

// copyTo writes all keys into a new index and declares it sound.
func (d *DB) copyTo(fresh string) error {
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	to, err := Open(fresh, d.l, d.room, d.t)
	if err != nil {
		return err
	}
	err = d.copyInto(to)
	if err == nil {
		err = to.Sync()
	}
	err = errors.Join(err, to.Close())
	if err == nil && to.Cut() {
		err = errors.New("the disk is full again")
	}
	if err == nil {
		err = DeclareSound(fresh)
	}
	return err
}

// copyInto writes all keys to another index. A value that cannot be read, which Badger answers with an empty one, stays
// damaged: the journals may have it.
func (d *DB) copyInto(to *DB) (err error) {
	defer damageOfPanic(&err)
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	w := to.b.NewWriteBatch()
	defer func() { w.Cancel() }()
	bytes := 0
	copied := func(item *badger.Item) error {
		value, err := item.ValueCopy(nil)
		if err != nil {
			return err
		}
		key := item.KeyCopy(nil)
		if _, err := d.openValue(key, value); err != nil {
			d.l.Error("a record of the index is damaged, and stays so: rebuild it with gpucr-fs repair", "key",
				fmt.Sprintf("%.80q", key), "err", err)
			value = nil
		}
		if err := w.Set(key, value); err != nil {
			return err
		}
		if bytes += len(value) + len(key); bytes < batchBytes {
			return nil
		}
		bytes = 0
		err = to.written(w.Flush())
		w = to.b.NewWriteBatch()
		return err
	}
	err = b.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.PrefetchSize = 16
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			if err := copied(it.Item()); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, to.written(w.Flush()))
}

// DeclareSound makes the file, durably, that says that the index at dir is complete.
func DeclareSound(dir string) error {
	return errors.Join(os.WriteFile(filepath.Join(dir, soundName), nil, 0o600), storage.Disk{}.SyncDir(dir))
}

// IsSound says whether the index at dir is complete.
func IsSound(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, soundName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Swap puts the index at fresh in place of that at dir. Between its two renames there is none at dir: FinishSwap ends
// what was begun.
func Swap(dir, fresh string) error {
	aside := dir + ".old"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Rename(dir, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(os.Rename(fresh, dir), storage.Disk{}.SyncDir(filepath.Dir(dir))); err != nil {
		return err
	}
	return os.RemoveAll(aside)
}

// FinishSwap ends an exchange that a crash interrupted. The caller has synced the folder above: a killed process may
// not have. Other indexes beside one that is in its place are removed. One that was left before the exchange began
// grows stale, and would be taken for the truth if the other is lost.
func FinishSwap(dir string) error {
	fresh := dir + ".new"
	if _, err := os.Stat(dir); err == nil {
		_ = os.RemoveAll(dir + ".old") // nobody takes it for the truth: it may stay
		return os.RemoveAll(fresh)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if sound, err := IsSound(fresh); err != nil || !sound {
		return err
	}
	return errors.Join(os.Rename(fresh, dir), storage.Disk{}.SyncDir(filepath.Dir(dir)))
}

// Allocated gives the bytes that the files in dir occupy on disk.
func Allocated(dir string) (sum int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		var st unix.Stat_t
		err := unix.Stat(filepath.Join(dir, e.Name()), &st)
		if errors.Is(err, unix.ENOENT) {
			continue // Badger has just removed it
		}
		if err != nil {
			return 0, fmt.Errorf("stat %s: %w", e.Name(), err)
		}
		sum += st.Blocks * 512
	}
	return sum, nil
}
