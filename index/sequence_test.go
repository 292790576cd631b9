package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/keys/keystest"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// TestLastWordCounts: what was written last counts, whatever order the store was closed, opened and repaired in.
// Profiles are written after all roots, so their sequences are the highest; a draft that is given up fills a pack in
// between, so that each is in a journal of its own.
func TestLastWordCounts(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]string{
		"written again": {"first", "second"},
		"cleared":       {"first", ""},
		"three times":   {"first", "second", "third"},
		"and back":      {"first", "", "second", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "a", map[string][]byte{"f": []byte("content")})
			for i, word := range words {
				// Each time one more than before, so that a sequence that starts over stays behind.
				for range len(words) - i {
					if err := s.SetProfile("a", []byte(word)); err != nil {
						t.Fatal(err)
					}
				}
				d := create(t, s, "draft", drafts.CreateOptions{})
				fill(t, d, map[string][]byte{"pages-1.img": memory(uint64(i), 48<<20)})
				if err := d.Abort(); err != nil {
					t.Fatal(err)
				}
				s = reopen(t, s)
			}
			for _, step := range []string{"opened", "repaired", "repaired again"} {
				if step != "opened" {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					mustRepair(t, s)
					s = openTestStore(t, s.dir, s.o)
				}
				want := words[len(words)-1]
				p, err := s.Profile("a")
				if want == "" && fault.ClassOf(err) == fault.NotFound {
					err = nil
				}
				if string(p) != want || err != nil {
					t.Errorf("%s: profile %q, %v, and %q was written last", step, p, err, want)
				}
			}
		})
	}
}

// TestLaterInOneBatch: records of one key that are applied together need not come in their order, as where gc has moved
// an earlier one to the end of the newest journal.
func TestLaterInOneBatch(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	b := s.chunks.DB.Batch()
	for _, seq := range []uint64{5, 3, 9, 7} {
		kv := pack.KV{Seq: seq, Key: manifest.ProfileKey("x"), Value: fmt.Append(nil, seq)}
		if err := s.chunks.Apply(b, pack.Record{KV: &kv}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if seq, value, err := s.chunks.DB.Meta(manifest.ProfileKey("x")); seq != 9 || string(value) != "9" || err != nil {
		t.Errorf("%d %q %v", seq, value, err)
	}
}

// TestForgedSequence: a forged record does not let numbers start over, nor get so high that what is written next would
// not be read again.
func TestForgedSequence(t *testing.T) {
	for _, seq := range []uint64{1<<64 - 1, pack.MaxSeq + 1, pack.MaxSeq} {
		t.Run(fmt.Sprint(seq), func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "a", map[string][]byte{"f": []byte("content")})
			b := s.chunks.DB.Batch()
			b.Later(seq)
			if err := b.Flush(); err != nil {
				t.Fatal(err)
			}
			s = reopen(t, s)
			err := s.SetProfile("a", []byte("profile"))
			if seq == pack.MaxSeq {
				if fault.ClassOf(err) != fault.Corrupt {
					t.Errorf("a number beyond the last: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s = reopen(t, s)
			if p, err := s.Profile("a"); string(p) != "profile" || err != nil {
				t.Errorf("%q, %v", p, err)
			}
			mustHold(t, s, "a", map[string][]byte{"f": []byte("content")})
		})
	}
}

// TestSequenceWithoutItsNote: an index without the note of the highest sequence, as an older program has left it, gets
// the right one, also where the tail of an early journal is applied first.
func TestSequenceWithoutItsNote(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": []byte("content")})
	if err := s.SetProfile("a", []byte("first")); err != nil {
		t.Fatal(err)
	}
	d := create(t, s, "draft", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"pages-1.img": memory(1, 48<<20)})
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	for range 3 {
		if err := s.SetProfile("a", []byte("second")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The keys of the note, and of how far the first journal was applied: see package keys.
	keystest.Forget(t, filepath.Join(s.dir, chunks.IndexFolder), "sseq", "smark\x00\x00\x00\x01")
	s = openTestStore(t, s.dir, s.o)
	if err := s.SetProfile("a", []byte("third")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	if p, err := s.Profile("a"); string(p) != "third" || err != nil {
		t.Errorf("profile %q, %v", p, err)
	}
}

// The index shows an older note of the highest sequence: what is removed then stays removed in an index that is built
// anew.
func TestRemovedStaysRemovedBehindAnOlderSequence(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	must(t, s.Tag(t.Context(), "x", []string{"t"}, nil))
	must(t, s.Close())
	dir := filepath.Join(s.dir, chunks.IndexFolder)
	noteEarlier(t, s)
	s = openTestStore(t, s.dir, s.o)
	must(t, s.Remove(t.Context(), []string{"x"}))
	must(t, s.Close())
	must(t, os.RemoveAll(dir))
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	if _, err := s.Info("x"); ClassOf(err) != NotFound {
		t.Errorf("the removed checkpoint is back: %v", err)
	}
}

// The same of a profile, which no root tells the number of.
func TestLastWordBehindAnOlderSequence(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": []byte("content")})
	for i := range 5 {
		must(t, s.SetProfile("a", fmt.Append(nil, i)))
	}
	must(t, s.Close())
	noteEarlier(t, s)
	s = openTestStore(t, s.dir, s.o)
	must(t, s.SetProfile("a", []byte("last")))
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)))
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	if p, err := s.Profile("a"); string(p) != "last" || err != nil {
		t.Errorf("profile %q, %v", p, err)
	}
}

// noteEarlier has the index of a closed store show an older note of the highest sequence.
func noteEarlier(t *testing.T, s *Store) {
	t.Helper()
	dir := filepath.Join(s.dir, chunks.IndexFolder)
	keystest.Forget(t, dir, "sseq")
	d, err := keys.Open(dir, s.o.Logger, keys.Room{Dir: s.dir}, keys.Tuning{})
	must(t, err)
	b := d.Batch()
	b.Later(1)
	must(t, errors.Join(b.Flush(), d.Close()))
}
