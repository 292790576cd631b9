package keys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
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
