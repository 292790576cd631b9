package index

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/keys"
)

// TestCloseOfWhatCannotBeWritten takes the index away from under an open store: closing it ends, and nothing is lost
// when the index is there again.
func TestCloseOfWhatCannotBeWritten(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	dir := s.Dir()
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20)}
	write(t, s, "one", files)
	index := filepath.Join(dir, chunks.IndexFolder)
	if err := os.Rename(index, index+".away"); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, keys.ErrUnwritten) {
			t.Errorf("closed with: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the store is not closed after a minute")
	}
	if err := os.Rename(index+".away", index); err != nil {
		t.Fatal(err)
	}
	// What goes on trying gets done, as it does not in a process that ends.
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if s, err = Open(t.Context(), dir, testOptions(t)); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, s, "one", files)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestUnbornFiles opens a store over what a process leaves that was killed while Badger made a file: an empty log, and
// a table that the manifest does not name yet, with some of its bytes.
func TestUnbornFiles(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	dir := s.Dir()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"000900.sst":  bytes.Repeat([]byte{0x5a, 0, 0, 1}, 1000),
		"000901.sst":  nil,
		"00900.mem":   nil,
		"000900.vlog": nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, "index", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openTestStore(t, dir, testOptions(t))
	left, err := filepath.Glob(filepath.Join(dir, "index", "00090?.sst"))
	if err != nil || len(left) > 0 {
		t.Errorf("half-made tables stay: %v, %v", left, err)
	}
}
