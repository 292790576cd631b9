package kfdsim

import (
	"math/rand/v2"
	"testing"
)

// The pool hands out ranges that do not overlap, wiped, and is whole again when
// all came back.
func TestPool(t *testing.T) {
	a, err := newArena("test", 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	const size = 4 << 20
	if err := a.addPool(size); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	type part struct {
		off uint64
		mem []byte
	}
	var held []part
	for range 5000 {
		if n := uint64(1+r.IntN(64)) * pageSize; r.IntN(2) == 0 {
			if off, mem, ok := a.pool.take(n); ok {
				if uint64(len(mem)) != n || mem[0] != 0 || mem[n-1] != 0 {
					t.Fatalf("%d bytes, first %d last %d", len(mem), mem[0], mem[n-1])
				}
				for _, h := range held {
					if off < h.off+uint64(len(h.mem)) && h.off < off+n {
						t.Fatalf("%#x+%#x overlaps %#x+%#x", off, n, h.off, len(h.mem))
					}
				}
				mem[0], mem[n-1] = 1, 1
				held = append(held, part{off, mem})
			}
		} else if len(held) > 0 {
			i := r.IntN(len(held))
			if !a.pool.give(held[i].off, held[i].mem) {
				t.Fatal("pool does not know its memory")
			}
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	for _, h := range held {
		a.pool.give(h.off, h.mem)
	}
	if len(a.pool.free) != 1 || a.pool.free[0].n != size {
		t.Errorf("pool is in pieces: %+v", a.pool.free)
	}
	if a.pool.give(0, nil) {
		t.Error("pool took what is not its own")
	}
}
