package keys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestDamagedValueLog flips bits of the head of a value that Badger keeps in its value log, and of the value. The value
// is damaged then, or right, and Close returns: a wrong length once left the file locked, and commands never ended.
func TestDamagedValueLog(t *testing.T) {
	pristine := t.TempDir()
	value := make([]byte, 4<<10)
	for _, key := range []string{"key", "other"} { // the newest log is read when it is opened
		d := openAt(t, pristine)
		b := d.Batch()
		b.SetMeta(key, 7, value)
		if err := errors.Join(b.Flush(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	const first = 20 // where the first entry of a value log begins; the lengths are in its head
	at := []int64{first + 100, first + 4<<10}
	for off := int64(first); off < first+6; off++ {
		at = append(at, off)
	}
	damaged := 0
	for _, off := range at {
		for _, bit := range []byte{0, 7} {
			dir := filepath.Join(t.TempDir(), "index")
			if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
				t.Fatal(err)
			}
			flipBit(t, dir, off, bit)
			d := openAt(t, dir)
			_, got, err := d.Meta("key")
			switch {
			case errors.Is(err, ErrDamaged):
				damaged++
			case err != nil || string(got) != string(value):
				t.Errorf("bit %d at %d: %d bytes, %v", bit, off, len(got), err)
			}
			closed := make(chan error, 1)
			go func() { closed <- d.Close() }()
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Fatalf("bit %d at %d: Close does not return", bit, off)
			}
		}
	}
	if damaged < len(at) {
		t.Errorf("%d of %d values are damaged", damaged, 2*len(at))
	}
}

// flipBit flips a bit of the first value log in dir.
func flipBit(t *testing.T, dir string, off int64, bit byte) {
	t.Helper()
	names, err := fs.Glob(os.DirFS(dir), "*.vlog")
	if err != nil || len(names) == 0 {
		t.Fatalf("value logs: %v, %v", names, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, names[0]), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}
