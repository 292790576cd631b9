package keys

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestCompactionTellsThatItSynced: whoever asks what a power cut leaves is told of the values that a compaction has
// moved, before the index is declared sound again.
func TestCompactionTellsThatItSynced(t *testing.T) {
	dir := t.TempDir()
	logs := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*.vlog"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	var told []string // the logs when it was told last
	var sound bool
	synced := func(string) {
		var err error
		if sound, err = IsSound(dir); err != nil {
			t.Error(err)
		}
		told = logs()
	}
	open := func() *DB {
		d, err := Open(dir, slog.New(slog.DiscardHandler), Room{Dir: dir}, Tuning{Synced: synced})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for round := range 8 { // a log each, of which the next one leaves nothing alive
		d := open()
		b := d.Batch()
		for i := range 20 {
			b.SetMeta(fmt.Sprint("key", i), uint64(round+1), bytes.Repeat([]byte{byte(round)}, 4<<10))
		}
		if err := errors.Join(b.Flush(), d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := DeclareSound(dir); err != nil {
		t.Fatal(err)
	}
	d := open()
	t.Cleanup(func() { d.Close() })
	before := logs()
	for end := time.Now().Add(time.Minute); slices.Equal(before, logs()); { // Badger counts what is dead, in its time
		if time.Now().After(end) {
			t.Fatalf("no log was given back: %v", before)
		}
		if err := d.Compact(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !slices.Equal(told, logs()) || sound {
		t.Errorf("%v are left; told last of %v, declared sound before: %v", logs(), told, sound)
	}
}
