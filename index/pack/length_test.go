package pack

import (
	"testing"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// TestUnknownLengthOfAJournal: when the length of a journal cannot be asked for once, it is asked for again. Payload is
// read meanwhile, the journal is not taken for an empty one, and no frame is written over its first ones.
func TestUnknownLengthOfAJournal(t *testing.T) {
	var first, second Chunk
	var size int64
	for name, use := range map[string]func(t *testing.T, s *Set) error{
		"payload": func(_ *testing.T, s *Set) error { return readable(s, []Loc{second.Loc}) },
		"resume": func(t *testing.T, s *Set) error {
			if resumed, err := s.Resume(1, second.Loc.Offset()+second.Loc.Slot(), size); resumed != (err == nil) {
				t.Errorf("resumed %v, %v", resumed, err)
			}
			return nil
		},
		"frame": func(t *testing.T, s *Set) error {
			if _, err := s.Kill(1, []Chunk{first}); err == nil {
				t.Error("a frame was written to a journal of unknown length")
			}
			return nil
		},
		"length": func(t *testing.T, s *Set) error {
			if size, err := s.JournalSize(1); err == nil {
				t.Errorf("a length of %d", size)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := storage.NewMem(memDir)
			s := openOn(t, m)
			for i, c := range []*Chunk{&first, &second} {
				var err error
				if *c, err = appendTo(s, content(uint64(i), 5000)); err != nil {
					t.Fatal(err)
				}
			}
			done, err := s.Commit([]KV{{Seq: 1, Key: "a"}})
			if err != nil {
				t.Fatal(err)
			}
			size = done.Marks[1]
			s = openOn(t, failing(m, storage.OpStat, ".journal", storage.Fail, 1))
			if err := use(t, s); err != nil {
				t.Error(err)
			}
			if name == "payload" { // which does not ask
				if _, err := s.JournalSize(1); err == nil {
					t.Error("the journal's length was asked for, and the answer was lost")
				}
			}
			if end, bad, err := s.Read(1, 0, func(Record) error { return nil }); end != size || len(bad) > 0 ||
				err != nil {
				t.Errorf("the journal is read up to %d of %d, %+v, %v", end, size, bad, err)
			}
			if _, err := s.Kill(1, []Chunk{first}); err != nil {
				t.Error(err)
			}
			chunks, keys := held(t, openOn(t, m))
			if len(chunks) != 1 || len(chunks[second.ID]) != 1 || keys["a"] != 1 {
				t.Errorf("the journal tells of %v, %v", chunks, keys)
			}
		})
	}
}

// TestJournalAfterAFailedRewrite: whichever of the two files is there, it can be read.
func TestJournalAfterAFailedRewrite(t *testing.T) {
	for _, kind := range []storage.FaultKind{storage.Fail, storage.Late} {
		m := storage.NewMem(memDir)
		s := openOn(t, failing(m, storage.OpRename, ".new", kind, 1))
		first, err := appendTo(s, content(1, 5000))
		if err != nil {
			t.Fatal(err)
		}
		for seq := range uint64(5) {
			if _, err := s.Commit([]KV{{Seq: seq + 1, Key: "a"}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.RewriteJournal(1, []Chunk{first}, []KV{{Seq: 5, Key: "a"}}); err == nil || !s.Condemned(1) {
			t.Fatalf("rewrite: %v", err)
		}
		chunks, keys := held(t, s)
		if len(chunks[first.ID]) != 1 || keys["a"] != 5 {
			t.Errorf("the journal tells of %v, %v", chunks, keys)
		}
	}
}
