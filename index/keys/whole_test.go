package keys

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Badger removes tables that it has merged, and cuts them to nothing before. An index that is written meanwhile is
// whole.
func TestWholeBesideCompactions(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir, slog.New(slog.DiscardHandler), Room{Dir: dir}, Tuning{Memory: 32 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := DeclareSound(dir); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		rnd := rand.NewChaCha8([32]byte{1})
		var id chunk.ID
		for range 24 {
			b := d.Batch()
			for range 400 {
				rnd.Read(id[:])
				b.SetChunk(pack.Chunk{ID: id, Loc: pack.Loc{Pack: 3, Stored: 4096, Raw: 8192, Codec: chunk.S2}})
			}
			if err := errors.Join(b.Flush(), d.b.Flatten(1)); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	for n := 0; ; n++ {
		select {
		case err := <-written:
			if err != nil || n == 0 {
				t.Errorf("after %d checks: %v", n, err)
			}
			return
		default:
		}
		if err := d.Whole(); err != nil {
			t.Errorf("check %d of a sound index: %v", n, err)
			<-written
			return
		}
	}
}
