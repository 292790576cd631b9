package keys

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// rest makes a sound index of n chunks that has nothing in memory, and opens it.
func rest(t *testing.T, n int) (*DB, []chunk.ID) {
	t.Helper()
	closed, ids := chunks(t, n)
	if err := errors.Join(closed.Close(), DeclareSound(closed.dir)); err != nil {
		t.Fatal(err)
	}
	d := openAt(t, closed.dir)
	t.Cleanup(func() { d.Close() })
	return d, ids
}

func mustBeSound(t *testing.T, d *DB) {
	t.Helper()
	if sound, err := IsSound(d.dir); err != nil || !sound || d.Cut() {
		t.Errorf("sound: %v, %v; cut: %v", sound, err, d.Cut())
	}
}

// All that needs descriptors says so while there are none. Nothing is damaged by that, and all goes on afterwards.
func TestWithoutDescriptors(t *testing.T) {
	d, ids := rest(t, 5000)
	all := map[string]func() error{
		"Whole": d.Whole,
		"Flush": func() error {
			b := d.Batch()
			b.SetChunk(pack.Chunk{ID: ids[0], Loc: pack.Loc{Pack: 4, Stored: 4096, Raw: 8192, Codec: chunk.S2}})
			return b.Flush()
		},
		"Sync":    d.Sync,
		"Compact": d.Compact,
	}
	end := descriptors.Lack(t)
	errs := map[string]error{}
	for name, do := range all {
		errs[name] = do()
	}
	end()
	for name, err := range errs {
		if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrDamaged) || errors.Is(err, pack.ErrNoSpace) {
			t.Errorf("%s without descriptors: %v", name, err)
		}
	}
	mustBeSound(t, d)
	for name, do := range all {
		if err := do(); err != nil {
			t.Errorf("%s with descriptors: %v", name, err)
		}
	}
	mustBeSound(t, d)
}

// spare leaves this process n descriptors to open, until end is called.
func spare(t *testing.T, n int) (end func()) {
	t.Helper()
	limit := 3
	for taken := true; taken || n > 0; limit++ {
		_, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0)
		if taken = err == nil; !taken {
			n--
		}
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = uint64(limit - 1)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// An index is opened where there are too few descriptors: it stays sound, and Badger does not end the process.
func TestOpenWithFewDescriptors(t *testing.T) {
	d, _ := rest(t, 10)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := 0; n < 40; n += 2 {
		end := spare(t, n)
		opened, err := Open(d.dir, slog.New(slog.DiscardHandler), Room{Dir: d.dir}, Tuning{})
		if err == nil {
			err = opened.Close()
		} else if refused++; Lacks(err) && !errors.Is(err, ErrDamaged) {
			err = nil
		}
		end()
		if err != nil {
			t.Errorf("%d descriptors: %v", n, err)
		}
		mustBeSound(t, d)
	}
	if refused < 5 || refused == 20 {
		t.Errorf("%d of 20 were refused", refused)
	}
}

// Badger tries for ever to write a table. What it could not write for want of descriptors is not lost.
func TestTableWithoutDescriptors(t *testing.T) {
	for _, e := range lacks {
		failed := false
		b := badgerLog{slog.New(slog.DiscardHandler), make(chan string), func() { failed = true }}
		b.Errorf("error flushing memtable to disk: %v, retrying", "error while creating table err: while creating "+
			"table: /a/000005.sst err: open /a/000005.sst: "+e.Error()+"\nunable to open: /a/000005.sst")
		if failed == starved(e) {
			t.Errorf("%v: failed: %v", e, failed)
		}
	}
}

// What took SOUND away and failed owes it to the index: the next one to sync it puts it back.
func TestSoundIsOwed(t *testing.T) {
	d, _ := rest(t, 10)
	d.owes.Store(true)
	unix.Unlink(d.dir + "/" + soundName)
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	mustBeSound(t, d)
}

// An index that cannot be opened for want of descriptors is not read before that is told: after an exchange everybody
// who looks something up tries, one after the other.
func TestTooFewDescriptorsAreToldFirst(t *testing.T) {
	d, _ := rest(t, 10)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(d.dir, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	if err := os.WriteFile(tables[0], make([]byte, 4096), 0o600); err != nil { // who reads it calls it damaged
		t.Fatal(err)
	}
	end := spare(t, 4)
	_, err = Open(d.dir, slog.New(slog.DiscardHandler), Room{Dir: d.dir}, Tuning{})
	end()
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}

// An index is opened for reading where there are too few descriptors: nothing of Badger is left running.
func TestOpenReadOnlyWithFewDescriptors(t *testing.T) {
	d, _ := rest(t, 10)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := 0; n < 40; n += 2 {
		end := spare(t, n)
		opened, err := OpenReadOnly(d.dir, slog.New(slog.DiscardHandler), Tuning{})
		if err == nil {
			err = opened.Close()
		} else if refused++; Lacks(err) && !errors.Is(err, ErrDamaged) {
			err = nil
		}
		end()
		if err != nil {
			t.Errorf("%d descriptors: %v", n, err)
		}
	}
	if refused == 0 || refused == 20 {
		t.Errorf("%d of 20 were refused", refused)
	}
}
