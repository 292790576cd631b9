package remotes

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// A ledger that cannot be read for a moment is not written over, and until it can be read nothing counts as never taken
// to the remote store: somebody may have removed it there.
func TestLedgerThatIsNotRead(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	open := func() *Remote { return &Remote{ledger: openLedger(dir, log)} }
	r := open()
	r.NoteStands("1", "one")
	r.NoteRemoved("one")
	path := filepath.Join(dir, ledgerName)
	if err := os.Rename(path, path+".x"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(ledgerName, path); err != nil { // ELOOP stands for EIO or EMFILE
		t.Fatal(err)
	}
	r = open()
	if stands, known := r.Has("1"); stands || !known {
		t.Error("what may have been removed there counts as never taken there")
	}
	r.NoteStands("2", "two")
	r.NoteStands("5", "five")
	r.NoteRemoved("five")
	if r.Noted() == nil {
		t.Error("a ledger that cannot be read counts as read")
	}
	if err := os.Rename(path+".x", path); err != nil { // it can be read again
		t.Fatal(err)
	}
	r.NoteStands("3", "three")
	for _, r := range []*Remote{r, open()} {
		for id, want := range map[string]bool{"1": false, "2": true, "3": true, "5": false} {
			if stands, known := r.Has(id); stands != want || !known {
				t.Errorf("checkpoint %s: stands %v, known %v", id, stands, known)
			}
		}
		if _, known := r.Has("4"); known {
			t.Error("something is known of a checkpoint that nobody told of")
		}
	}
}
