package model

import (
	"slices"
	"time"
)

// shrink gives a short program that still fails, and its failure: it leaves out what it can, for as long as time
// allows. fails runs a program once; what needs luck is tried again.
func shrink(p *program, first error, until time.Time, fails func(*program) error) (*program, error) {
	best, why := *p, first
	try := func(ops []op) bool {
		c := best
		c.Ops = ops
		for range 3 {
			if time.Now().After(until) {
				return false
			}
			if err := fails(&c); err != nil {
				best, why = c, err
				return true
			}
		}
		return false
	}
	for size := max(1, len(best.Ops)/2); ; {
		smaller := false
		for at := len(best.Ops) - size; at > -size; at -= size {
			from, to := max(at, 0), min(max(at, 0)+size, len(best.Ops))
			if from < to && try(slices.Delete(slices.Clone(best.Ops), from, to)) {
				smaller = true
			}
		}
		switch {
		case size > 1:
			size /= 2
		case !smaller:
			return simplify(best, why, try, &best, &why)
		}
		if time.Now().After(until) {
			return &best, why
		}
	}
}

// simplify takes parts out of steps.
func simplify(_ program, _ error, try func([]op) bool, best *program, why *error) (*program, error) {
	for i := 0; i < len(best.Ops); i++ {
		for _, change := range []func(o *op){
			func(o *op) { o.NoFaults = true },
			func(o *op) { o.Beside = nil },
			func(o *op) { o.Len = min(o.Len, 4096) },
		} {
			ops := slices.Clone(best.Ops)
			change(&ops[i])
			if !same(ops[i], best.Ops[i]) {
				try(ops)
			}
		}
		for b := len(best.Ops[i].Beside) - 1; b >= 0; b-- {
			ops := slices.Clone(best.Ops)
			ops[i].Beside = slices.Delete(slices.Clone(ops[i].Beside), b, b+1)
			try(ops)
		}
		for t := 0; t < len(best.Ops[i].Threads); t++ {
			for k := len(best.Ops[i].Threads[t]) - 1; k >= 0; k-- {
				ops := slices.Clone(best.Ops)
				threads := slices.Clone(ops[i].Threads)
				threads[t] = slices.Delete(slices.Clone(threads[t]), k, k+1)
				ops[i].Threads = threads
				try(ops)
			}
		}
	}
	return best, *why
}

func same(a, b op) bool {
	return a.NoFaults == b.NoFaults && len(a.Beside) == len(b.Beside) && a.Len == b.Len
}
