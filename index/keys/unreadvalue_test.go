package keys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Badger answers a value that it cannot read with an empty one. After a full disk the copy of the index has it as a
// damaged one, and can be written.
func TestUnreadableValueStaysDamaged(t *testing.T) {
	d, _ := chunks(t, 10)
	b := d.Batch()
	b.SetMeta("key", 7, make([]byte, 4<<10))
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := DeclareSound(d.dir); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(d.dir, "*.vlog"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, 1000); err != nil {
		t.Fatal(err)
	}
	d.condemn() // the disk was full, or gave a SIGBUS for this page
	b = d.Batch()
	b.SetMark(1, 1)
	if err := b.Flush(); err != nil {
		t.Errorf("for one value the index cannot be written: %v", err)
	}
	if _, _, err := d.Meta("key"); !errors.Is(err, ErrDamaged) {
		t.Errorf("the value that cannot be read: %v", err)
	}
}
