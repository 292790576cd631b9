package pack

import (
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// tailed gives a set whose pack 1 has half a frame behind its journal's end, which a full disk left of keys, and is no
// longer the one that takes appends. fault is asked about each call from then on.
func tailed(
	t *testing.T, kind storage.FaultKind, fault *atomic.Pointer[func(storage.Call) storage.Fault],
) (*Set, Chunk) {
	t.Helper()
	s := openOn(t, &storage.Faulty{Storage: storage.NewMem(memDir), Rule: func(c storage.Call) storage.Fault {
		if f := fault.Load(); f != nil {
			return (*f)(c)
		}
		return storage.Fault{}
	}})
	c, err := appendTo(s, content(1, 5000))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(nil); err != nil {
		t.Fatal(err)
	}
	full := func(c storage.Call) storage.Fault {
		switch {
		case c.Op == storage.OpWrite && strings.HasSuffix(c.Name, ".journal"):
			return storage.Fault{Kind: kind, Err: unix.ENOSPC, Seed: 3}
		case c.Op == storage.OpTruncate && strings.HasSuffix(c.Name, ".journal"):
			return storage.Fault{Kind: storage.Fail} // else it would be cut off at once
		}
		return storage.Fault{}
	}
	fault.Store(&full)
	if _, err := s.Commit([]KV{{Seq: 1, Key: "k", Value: make([]byte, 3000)}}); err == nil {
		t.Fatal("no error on a full disk")
	}
	fault.Store(nil)
	if err := s.Roll(); err != nil { // the pack is full: the next append begins another
		t.Fatal(err)
	}
	return s, c
}

func sound(t *testing.T, s *Set, when string) {
	t.Helper()
	keys := 0
	end, bad, err := s.Read(1, 0, func(r Record) error {
		if r.KV != nil {
			keys++
		}
		return nil
	})
	if err != nil || len(bad) > 0 || keys > 0 {
		t.Errorf("%s: the journal ends at %d, damage %v, %d keys that were refused, %v", when, end, bad, keys, err)
	}
}

// TestTailAfterAFailedRewrite: the journal of a pack with a tail is to be written anew, and the disk is full again.
func TestTailAfterAFailedRewrite(t *testing.T) {
	for _, kind := range []storage.FaultKind{storage.Short, storage.Late} {
		var fault atomic.Pointer[func(storage.Call) storage.Fault]
		s, c := tailed(t, kind, &fault)
		sound(t, s, "before")
		full := func(c storage.Call) storage.Fault {
			if c.Op == storage.OpWrite {
				return storage.Fault{Kind: storage.Fail, Err: unix.ENOSPC}
			}
			return storage.Fault{}
		}
		fault.Store(&full)
		if _, err := s.RewriteJournal(1, []Chunk{c}, nil); err == nil {
			t.Fatal("no error")
		}
		fault.Store(nil)
		sound(t, s, "after a rewrite that found no room")
	}
}

// TestTailAfterAFailedDrop: the pack is dropped, and its file or its journal cannot be removed.
func TestTailAfterAFailedDrop(t *testing.T) {
	for _, suffix := range []string{".pack", ".journal"} {
		for _, kind := range []storage.FaultKind{storage.Short, storage.Late} {
			var fault atomic.Pointer[func(storage.Call) storage.Fault]
			s, _ := tailed(t, kind, &fault)
			no := func(c storage.Call) storage.Fault {
				if c.Op == storage.OpRemove && strings.HasSuffix(c.Name, suffix) {
					return storage.Fault{Kind: storage.Fail}
				}
				return storage.Fault{}
			}
			fault.Store(&no)
			if err := s.Drop(1); err == nil {
				t.Fatal("no error")
			}
			fault.Store(nil)
			sound(t, s, "after a drop that could not remove "+suffix)
		}
	}
}

// TestLittleRoomAgain: a full disk refused keys; then there is room again, less than the journal is long.
func TestLittleRoomAgain(t *testing.T) {
	var room atomic.Int64 // bytes that journals may still grow by
	room.Store(1 << 30)
	s := openOn(t, &storage.Faulty{Storage: storage.NewMem(memDir), Rule: func(c storage.Call) storage.Fault {
		if c.Op != storage.OpWrite || !strings.Contains(c.Name, ".journal") {
			return storage.Fault{}
		}
		if room.Load() < c.Len {
			return storage.Fault{Kind: storage.Fail, Err: unix.ENOSPC}
		}
		room.Add(-c.Len)
		return storage.Fault{}
	}})
	for seq := range uint64(4) { // a journal of 4 MiB
		if _, err := s.Commit([]KV{{Seq: 1 + seq, Key: "k", Value: make([]byte, 1<<20)}}); err != nil {
			t.Fatal(err)
		}
	}
	room.Store(0)
	if _, err := s.Commit([]KV{{Seq: 5, Key: "k", Value: []byte("v")}}); err == nil {
		t.Fatal("no error on a full disk")
	}
	room.Store(1 << 20)
	if _, err := s.Commit([]KV{{Seq: 6, Key: "k", Value: []byte("v")}}); err != nil {
		t.Errorf("with 1 MiB free, 60 bytes to write: %v", err)
	}
}

// TestRefusedFramesAreCutOff: a full disk takes the first part of some frames, and the next process finds no half
// frame.
func TestRefusedFramesAreCutOff(t *testing.T) {
	for _, kind := range []storage.FaultKind{storage.Short, storage.Late} {
		var fault atomic.Pointer[func(storage.Call) storage.Fault]
		m := storage.NewMem(memDir)
		s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
			if f := fault.Load(); f != nil {
				return (*f)(c)
			}
			return storage.Fault{}
		}})
		if _, err := appendTo(s, content(1, 5000)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(nil); err != nil {
			t.Fatal(err)
		}
		before, err := m.Stat(s.JournalPath(1))
		if err != nil {
			t.Fatal(err)
		}
		full := func(c storage.Call) storage.Fault {
			if c.Op == storage.OpWrite && strings.HasSuffix(c.Name, ".journal") {
				return storage.Fault{Kind: kind, Err: unix.ENOSPC, Seed: 3}
			}
			return storage.Fault{}
		}
		fault.Store(&full)
		if _, err := s.Commit([]KV{{Seq: 1, Key: "k", Value: make([]byte, 3000)}}); err == nil {
			t.Fatal("no error on a full disk")
		}
		if after, err := m.Stat(s.JournalPath(1)); err != nil || after.Size != before.Size {
			t.Errorf("the journal has %d bytes, and had %d: %v", after.Size, before.Size, err)
		}
	}
}
