package manifest

import (
	"bytes"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func FuzzDecodeHot(f *testing.F) {
	f.Add(EncodeHot(HotPiece+1, make([]chunk.ID, 2)))
	f.Add(EncodeHot(HotPiece, make([]chunk.ID, 1)))
	f.Add(EncodeHot(0, nil))
	f.Add([]byte("1234567"))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		size, ids, err := DecodeHot(b)
		if err != nil {
			return
		}
		if !bytes.Equal(EncodeHot(size, ids), b) {
			t.Error("what was read is written in another way")
		}
		if last := size - int64(len(ids)-1)*HotPiece; last <= 0 || last > HotPiece {
			t.Errorf("a last piece of %d bytes", last)
		}
	})
}
