package keys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// TestUnreadableIndexIsNotCopied loses a part of a table, as where the disk cannot read it, in an index that is to be
// written anew after the disk was full. A copy would lack what lay there, and pass for whole: there is none, and the
// index is not sound.
func TestUnreadableIndexIsNotCopied(t *testing.T) {
	d, _ := chunks(t, 5000)
	dir := d.dir
	if err := d.Close(); err != nil { // writes the table
		t.Fatal(err)
	}
	if err := DeclareSound(dir); err != nil {
		t.Fatal(err)
	}
	d = openAt(t, dir)
	defer d.Close()
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	f, err := os.OpenFile(tables[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4096), 32<<10); err != nil {
		t.Fatal(err)
	}
	d.condemn()
	b := d.Batch()
	b.SetMark(1, 1)
	if err := b.Flush(); err == nil {
		n := 0
		d.Chunks(func(chunk.ID, pack.Loc, error) error { n++; return nil })
		t.Errorf("written, to an index of %d chunks of 5000", n)
	}
	if sound, err := IsSound(dir); err != nil || sound {
		t.Error("the index counts as sound")
	}
}

// The index that was written anew after a full disk can't be opened for want of descriptors. Whoever uses it is told so
// as long as that lasts, not that something is damaged. Then it is there.
func TestExchangeWithoutDescriptors(t *testing.T) {
	closed, ids := chunks(t, 10)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	d := openAt(t, closed.dir) // has nothing in memory: it is closed without descriptors
	defer d.Close()
	d.condemn()
	if err := d.copyTo(d.dir + ".new"); err != nil {
		t.Fatal(err)
	}
	d.in.Store(out)
	end := descriptors.Lack(t)
	failed := d.exchange()
	_, err := d.Loc(ids[0])
	_, marked := d.Mark(1)
	flushed := d.Batch().Flush()
	end()
	if failed == nil {
		t.Fatal("exchanged without descriptors: the test shows nothing")
	}
	for what, err := range map[string]error{"a place": err, "a mark": marked, "a batch": flushed} {
		if !errors.Is(err, unix.EMFILE) || !Failed(err) {
			t.Errorf("%s without descriptors: %v", what, err)
		}
	}
	if _, err := d.Loc(ids[0]); err != nil {
		t.Errorf("with descriptors: %v", err)
	}
	if err := d.Batch().Flush(); err != nil {
		t.Errorf("with descriptors: %v", err)
	}
	if sound, err := IsSound(d.dir); err != nil || !sound {
		t.Errorf("sound: %v, %v", sound, err)
	}
}

// An index that was written anew and can't be opened, for damage: not each one who uses it opens it again. Once the
// store is closed nobody does: it would stay open.
func TestExchangeThatFails(t *testing.T) {
	d, ids := rest(t, 5000)
	d.condemn()
	fresh := d.dir + ".new"
	if err := d.copyTo(fresh); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(fresh, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	name := filepath.Join(d.dir, filepath.Base(tables[0]))
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tables[0], make([]byte, len(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.in.Store(out)
	look := func() error {
		_, err := d.Loc(ids[0])
		return err
	}
	if err := look(); !errors.Is(err, ErrDamaged) {
		t.Fatalf("of a damaged table: %v", err)
	}
	if err := os.WriteFile(name, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	d.failedAt = time.Now().Add(time.Hour)
	if err := look(); !errors.Is(err, ErrDamaged) || d.b != nil {
		t.Errorf("it was tried again at once: %v", err)
	}
	d.failedAt = time.Time{}
	d.ended.Store(true)
	if err := look(); err == nil || d.b != nil {
		t.Errorf("opened after it was closed: %v", err)
	}
	d.ended.Store(false)
	if err := look(); err != nil {
		t.Error(err)
	}
}

// The index is closed while it is being exchanged: it is not open afterwards, so that another one can open it.
func TestCloseBesideAnExchange(t *testing.T) {
	d, _ := chunks(t, 10)
	d.turn.Lock()
	d.in.Store(out)
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	for !d.ended.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := d.exchange(); err != nil {
		t.Error(err)
	}
	d.turn.Unlock()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	again, err := Open(d.dir, d.l, d.room, Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestLeftBesideAnIndex: what an exchange leaves beside an index goes with the next opening.
func TestLeftBesideAnIndex(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "index")
	for _, name := range []string{dir, dir + ".old", dir + ".new"} {
		if err := os.MkdirAll(filepath.Join(name, "folder"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := FinishSwap(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dir + "*"); err != nil || len(left) != 1 {
		t.Errorf("%q, %v", left, err)
	}
}
