package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// weights of the steps of a program, in percent of nothing.
var weights = []struct {
	do string
	n  int
}{
	{"draft", 9}, {"write", 34}, {"truncate", 3}, {"punch", 3}, {"rename", 2}, {"unlink", 1}, {"read", 3}, {"flush", 2},
	{"seal", 10}, {"abort", 5}, {"import", 9}, {"trial", 1}, {"duel", 3}, {"tag", 4}, {"untag", 1}, {"rm", 8}, {"profile", 2},
	{"hotset", 1}, {"gc", 9}, {"dry", 1}, {"verify", 3}, {"usage", 1}, {"reopen", 4}, {"repair", 1}, {"crash", 4}, {"heal", 2},
	{"flip journal", 2}, {"hide journal", 1}, {"flip index", 1}, {"par", 3}, {"hammer", 1},
}

// besides are the steps that may run beside another.
var besides = map[string][]string{
	"seal":   {"write", "write", "write", "gc", "rm", "import", "tag", "abort"},
	"gc":     {"abort", "seal", "import", "write", "rm", "tag", "trial", "trial", "import", "seal"},
	"tag":    {"rm", "tag", "gc"},
	"rm":     {"tag", "gc", "seal", "import"},
	"import": {"gc", "rm", "abort", "import"},
	"verify": {"rm", "import", "abort", "seal"},
}

type generator struct {
	r       *rand.Rand
	without []string
	id      int
	last    op       // import or trial; the next may bring the same
	open    []string // drafts, probably
	sealed  []string // checkpoints, probably
}

const names = 6

func (g *generator) name(i int) string { return fmt.Sprintf("c%d", i) }

func (g *generator) file() string {
	return []string{"f0", "f1", "f2", "d/g", "amdgpu-pages-1.img"}[min(g.r.IntN(6), 4)]
}

func (g *generator) pick(of []string) string {
	if len(of) == 0 || g.r.IntN(12) == 0 {
		return g.name(g.r.IntN(names))
	}
	return of[g.r.IntN(len(of))]
}

func (g *generator) verb() string {
	for {
		total := 0
		for _, w := range weights {
			total += w.n
		}
		n := g.r.IntN(total)
		for _, w := range weights {
			if n -= w.n; n < 0 {
				if slices.Contains(g.without, w.do) {
					break
				}
				return w.do
			}
		}
	}
}

// fresh gives a name that is neither written nor sealed, probably.
func (g *generator) fresh() string {
	for range 4 {
		if n := g.name(g.r.IntN(names)); !slices.Contains(g.open, n) && !slices.Contains(g.sealed, n) {
			return n
		}
	}
	return g.name(g.r.IntN(names))
}

func drop(list []string, s string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(x string) bool { return x == s })
}

func (g *generator) size() int64 {
	switch g.r.IntN(8) {
	case 0:
		return int64(g.r.IntN(4096))
	case 1:
		return int64(g.r.IntN(120_000))
	}
	return int64(1+g.r.IntN(10)) * 4096
}

// op makes a step with the verb.
func (g *generator) op(do string) op {
	g.id++
	o := op{ID: g.id, Do: do, Seed: uint64(g.r.IntN(1 << 20))}
	switch do {
	case "draft":
		o.Ckpt = g.fresh()
		g.open = add(g.open, o.Ckpt)
	case "write":
		o.Ckpt, o.File, o.Off, o.Len = g.pick(g.open), g.file(), -1, g.size()
		if g.r.IntN(4) == 0 {
			o.Off = int64(g.r.IntN(60_000))
		}
	case "truncate", "punch":
		o.Ckpt, o.File, o.Off, o.Len = g.pick(g.open), g.file(), int64(g.r.IntN(60_000)), g.size()
	case "hammer":
		if g.r.IntN(4) > 0 {
			return g.op("write")
		}
		o.Ckpt, o.File = g.pick(g.open), g.file()
		o.Off, o.Len = int64(g.r.IntN(8192)), int64([]int{20, 300, 9000}[g.r.IntN(3)])
	case "rename":
		o.Ckpt, o.File, o.To = g.pick(g.open), g.file(), g.file()
	case "unlink", "read", "flush":
		o.Ckpt, o.File = g.pick(g.open), g.file()
	case "seal":
		o.Ckpt = g.pick(g.open)
		g.open, g.sealed = drop(g.open, o.Ckpt), add(g.sealed, o.Ckpt)
	case "abort":
		o.Ckpt = g.pick(g.open)
		g.open = drop(g.open, o.Ckpt)
	case "import", "trial":
		o.Ckpt, o.Len = g.fresh(), g.size()
		switch g.r.IntN(4) {
		case 0:
			o.To = g.pick(g.sealed)
		case 1:
			o.Len = 60_000 + int64(g.r.IntN(100_000)) // fills a pack
		case 2:
			if g.last.Len > 0 {
				o.To, o.Len, o.Seed = g.last.To, g.last.Len, g.last.Seed
			}
		}
		g.last = o
		if do == "import" {
			g.sealed = add(g.sealed, o.Ckpt)
		}
	case "tag", "untag":
		o.Ckpt, o.To = g.pick(g.sealed), fmt.Sprintf("t%d", g.r.IntN(2))
	case "rm":
		o.Ckpt = g.pick(g.sealed)
		if g.r.IntN(5) == 0 {
			o.To = g.pick(g.sealed)
		}
		g.sealed = drop(g.sealed, o.Ckpt)
	case "profile", "hotset":
		o.Ckpt, o.Len = g.pick(g.sealed), g.size()
	case "reopen", "repair", "crash", "heal", "flip journal", "hide journal", "flip index":
		g.open = nil
	case "duel": // a few steps on one checkpoint, all at once
		o.Do = "par"
		name := g.pick(g.sealed)
		for range 2 + g.r.IntN(2) {
			b := g.op([]string{"tag", "rm", "rm", "tag", "profile", "untag", "import"}[g.r.IntN(7)])
			b.Ckpt, b.To = name, map[string]string{"tag": "t0", "untag": "t0"}[b.Do]
			o.Threads = append(o.Threads, []op{b})
		}
	case "par":
		for range 2 + g.r.IntN(2) {
			var thread []op
			for range 2 + g.r.IntN(6) {
				do := []string{
					"draft", "write", "write", "write", "seal", "abort", "import", "tag", "rm", "gc", "gc", "verify",
				}[g.r.IntN(12)]
				thread = append(thread, g.op(do))
			}
			o.Threads = append(o.Threads, thread)
		}
	}
	return o
}

// generate makes the program of a seed.
func generate(seed uint64, m mode, without []string) *program {
	r := rand.New(rand.NewPCG(seed, 11))
	g := &generator{r: r, without: without}
	p := &program{
		Seed: seed, Mode: m, PackSize: []int64{64 << 10, 128 << 10, 512 << 10}[r.IntN(3)],
		CommitEvery: []int64{48 << 10, 256 << 10, 1 << 30}[r.IntN(3)], Shrink: []int64{300, 1000, 4000}[r.IntN(3)],
		Compression: []string{"none", "s2", "auto", "zstd"}[r.IntN(4)],
	}
	for range 15 + r.IntN(30) {
		o := g.op(g.verb())
		if list := besides[o.Do]; list != nil && r.IntN(2) == 0 {
			do := list[r.IntN(len(list))]
			b := g.op(do)
			if o.Do == "seal" && do == "write" || o.Do == "tag" && do == "rm" || o.Do == "rm" && do == "tag" {
				b.Ckpt = o.Ckpt
			}
			o.Beside, o.At = &b, r.IntN(8)
			switch r.IntN(3) {
			case 0:
				o.At = r.IntN(40)
			case 1:
				on := []string{"read", "write", "sync", "allocated", "size", "open", "punch hole"}
				o.On, o.At = on[r.IntN(7)], r.IntN(4)
			}
		}
		p.Ops = append(p.Ops, o)
	}
	return p
}
