package distant

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// What the index cannot read of a pack, and the journals have whole, is not written over when more is learned of it.
func TestLearnOverWhatCannotBeRead(t *testing.T) {
	j := newJournal(t)
	var list []pack.Chunk
	for i := range 100 {
		list = append(list, at(byte(i+1), 1, uint32(i)))
	}
	a := object.PackRef{Name: object.Name{1}, Size: 1 << 20}
	if err := j.d.Learn([]object.PackRef{a}, list, j.commit); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(j.dir, "*.vlog"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff, 0xff}, 1000); err != nil {
		t.Fatal(err)
	}
	beside := func(puts []keys.Put) error {
		for _, p := range puts {
			if p.Key == keyOf(pack.FirstDistant) {
				t.Error("the record that cannot be read was written over")
			}
		}
		return j.commit(puts)
	}
	if err := j.d.Learn([]object.PackRef{a}, []pack.Chunk{at(200, 1, 200)}, beside); err != nil {
		t.Fatal(err)
	}
	for _, id := range []byte{1, 200} {
		if name, _ := j.where(id); name != a.Name {
			t.Errorf("chunk %d is not known to lie in the pack", id)
		}
	}
}
