package keys

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// atMessage is a log that calls do at the first message that comes.
type atMessage struct {
	slog.Handler
	do func()
}

func (h atMessage) Enabled(context.Context, slog.Level) bool { return true }

func (h atMessage) Handle(context.Context, slog.Record) error {
	h.do()
	return nil
}

func (h atMessage) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h atMessage) WithGroup(string) slog.Handler { return h }

// A part of the index gets lost while it is copied, after it was looked at whether all of it can be read.
func TestIndexThatIsLostWhileItIsCopied(t *testing.T) {
	closed, _ := chunks(t, 5000)
	if err := errors.Join(closed.Close(), DeclareSound(closed.dir)); err != nil {
		t.Fatal(err)
	}
	d := openAt(t, closed.dir)
	defer d.Close()
	tables, err := filepath.Glob(filepath.Join(d.dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	f, err := os.OpenFile(tables[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lose := sync.OnceFunc(func() { f.WriteAt(make([]byte, 4096), 32<<10) })
	d.l = slog.New(atMessage{slog.DiscardHandler, lose}) // Badger says that it opens the new one
	d.condemn()
	b := d.Batch()
	b.SetMark(1, 1)
	if err := b.Flush(); !errors.Is(err, ErrDamaged) {
		n := 0
		d.Chunks(func(chunk.ID, pack.Loc, error) error { n++; return nil })
		t.Errorf("written, to an index of %d chunks of 5000: %v", n, err)
	}
	if sound, err := IsSound(d.dir); err != nil || sound {
		t.Errorf("the index counts as sound: %v", err)
	}
}
