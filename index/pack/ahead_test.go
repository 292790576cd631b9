package pack

import (
	"testing"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// TestRoomAhead: while much is appended the pack's file is longer than what is written of it, so that writers need not
// wait for each other. A commit with keys, Trim, the next pack and Close leave nothing of that. A file system that
// cannot allocate, or has too little, changes nothing else.
func TestRoomAhead(t *testing.T) {
	for name, rule := range map[string]func(storage.Call) storage.Fault{
		"allocated": func(storage.Call) storage.Fault { return storage.Fault{} },
		"refused": func(c storage.Call) storage.Fault {
			if c.Op == storage.OpAllocate {
				return storage.Fault{Kind: storage.Fail}
			}
			return storage.Fault{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := storage.NewMem(memDir)
			ahead := false
			s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
				ahead = ahead || c.Op == storage.OpAllocate
				return rule(c)
			}})
			var chunks []Chunk
			put := func(n int) {
				t.Helper()
				for range n {
					c, err := appendTo(s, content(uint64(len(chunks)), 60_000))
					if err != nil {
						t.Fatal(err)
					}
					chunks = append(chunks, c)
				}
			}
			ends := func(n uint32) {
				t.Helper()
				var end int64
				for _, c := range chunks {
					if c.Loc.Pack == n {
						end = max(end, c.Loc.Offset()+c.Loc.Slot())
					}
				}
				if size, err := s.Size(n); size != end || err != nil {
					t.Errorf("pack %d has %d bytes, want %d; %v", n, size, end, err)
				}
			}
			put(4)
			if size, _ := s.Size(1); name == "allocated" && size <= 4*60_000+4*4096 || !ahead {
				t.Errorf("no room is taken ahead: %d bytes", size)
			}
			commit := func(keys ...KV) int64 {
				t.Helper()
				done, err := s.Commit(keys)
				if err != nil {
					t.Fatal(err)
				}
				return done.Marks[s.Active()]
			}
			commit(KV{Seq: 1, Key: "a"})
			ends(1)
			put(4)
			commit()
			s.Trim()
			ends(1)
			put(20)
			if s.Active() != 2 {
				t.Fatalf("pack %d is active", s.Active())
			}
			ends(1)
			journal := commit()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ends(2)
			s = openOn(t, m)
			last := chunks[len(chunks)-1].Loc
			if ok, err := s.Resume(2, last.Offset()+last.Slot(), journal); !ok || err != nil {
				t.Errorf("resumed %v, %v", ok, err)
			}
			put(2)
			commit(KV{Seq: 2, Key: "b"})
			ends(2)
			if _, errs := readAll(t, s, false, chunks); len(errs) != len(chunks) {
				t.Errorf("%d chunks are read", len(errs))
			} else {
				for i, err := range errs {
					if err != nil {
						t.Errorf("chunk %d: %v", i, err)
					}
				}
			}
		})
	}
}
