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
	{
		"seal",
		10,
	}, {"abort", 5}, {"import", 9}, {"trial", 1}, {"duel", 3}, {"tag",
		4}, {"untag", 1}, {"rm", 8}, {"move", 3}, {"profile", 2},
	{
		"hotset",
		1,
	}, {"gc", 9}, {"dry", 1}, {"verify", 3}, {"usage", 1}, {"reopen", 4}, {"repair", 1}, {"crash", 4}, {"heal", 2},
	{"flip journal", 2}, {"hide journal", 1}, {"flip index", 1}, {"par", 3}, {"hammer", 1},
}

// besides are the steps that may run beside another.
var besides = map[string][]string{
	"seal":   {"write", "write", "write", "gc", "rm", "import", "tag", "abort"},
	"gc":     {"move", "abort", "seal", "import", "write", "rm", "tag", "trial", "trial", "import", "seal"},
	"tag":    {"rm", "tag", "gc"},
	"rm":     {"tag", "gc", "seal", "import", "move"},
	"move":   {"rm", "tag", "gc", "import", "seal", "profile", "move"},
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
	o := op{ID: g.next(), Do: do, Seed: uint64(g.r.IntN(1 << 20))}
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
	case "move":
		o.Ckpt, o.To = g.pick(g.sealed), g.fresh()
		g.sealed = add(drop(g.sealed, o.Ckpt), o.To)
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
		if !slices.Contains(without, "scene") && r.IntN(20) == 0 {
			p.Ops = append(p.Ops, g.scene(p)...)
			continue
		}
		o := g.op(g.verb())
		if list := besides[o.Do]; list != nil && r.IntN(2) == 0 {
			for range 1 + r.IntN(6)/4 {
				do := list[r.IntN(len(list))]
				b := g.op(do)
				if o.Do == "seal" && do == "write" || o.Do == "tag" && do == "rm" || o.Do == "rm" && do == "tag" {
					b.Ckpt = o.Ckpt
				}
				o.Beside = append(o.Beside, g.at(b))
			}
		}
		p.Ops = append(p.Ops, o)
	}
	return p
}

// at draws the storage call at which a step beside another begins.
func (g *generator) at(b op) op {
	b.At, b.On = g.r.IntN(8), ""
	switch g.r.IntN(3) {
	case 0:
		b.At = g.r.IntN(40)
	case 1:
		on := []string{"read", "write", "sync", "allocated", "size", "open", "punch hole", "create", "rename"}
		b.On, b.At = on[g.r.IntN(len(on))], g.r.IntN(4)
	}
	return b
}

// first is at for a step that is to begin early: of gc, when nothing is locked.
func (g *generator) first(b op) op {
	b.At, b.On = g.r.IntN(2), []string{"", "list", "list", "write", "sync"}[g.r.IntN(5)]
	return b
}

// scene makes steps that rarely come together by chance: what gc, commits and drafts do to one pack, or several
// steps to one root record.
func (g *generator) scene(p *program) []op {
	a, b := g.name(g.r.IntN(names)), g.name(g.r.IntN(names))
	big := min(p.PackSize/2+g.r.Int64N(p.PackSize), 200_000)
	with := func(do, ckpt string, n int64, seed uint64) op {
		o := g.op(do)
		o.Ckpt, o.To, o.Len, o.Seed = ckpt, "", n, seed
		return o
	}
	tag := func(ckpt string) op {
		o := g.op("tag")
		o.Ckpt, o.To = ckpt, "t0"
		return o
	}
	seed := uint64(g.r.IntN(1 << 20))
	small := int64(1+g.r.IntN(10)) * 4096
	var out []op
	switch g.r.IntN(4) {
	case 0: // A draft ends while gc runs, and what it wrote comes by again.
		c := with("gc", "", 0, 0)
		c.Beside = []op{g.first(with("trial", a, big, seed))}
		if g.r.IntN(3) == 0 {
			c.Beside[0] = g.at(c.Beside[0])
		}
		out = append(out, with("rm", a, 0, 0), c, with("import", b, big, seed), with("verify", "", 0, 0))
	case 1: // A draft fills the pack that gc looks at, and is sealed while gc is at its journal.
		write := with("write", b, big, seed)
		write.File, write.Off = "f0", -1
		c := with("gc", "", 0, 0)
		s := g.at(with("seal", b, 0, 0))
		switch g.r.IntN(6) {
		case 0, 1:
			s.On, s.At = []string{"open", "read", "create"}[g.r.IntN(3)], g.r.IntN(20)
		case 2, 3, 4: // as it punches
			s.On, s.At = []string{"allocated", "punch hole"}[g.r.IntN(2)], g.r.IntN(3)
		}
		c.Beside = []op{g.first(write), s}
		out = append(out, with("draft", b, 0, 0))
		for range 1 + g.r.IntN(3) {
			out = append(out, with("import", a, small, seed+1), with("rm", a, 0, 0))
		}
		out = append(out, c, with("verify", "", 0, 0))
	case 2: // A checkpoint goes while its tag does, both held up by a commit.
		c := []op{with("gc", "", 0, 0), with("profile", b, 0, 1), with("import", "c9", small, seed)}[g.r.IntN(3)]
		x, y := with("rm", a, 0, 0), tag(b)
		x.At, x.On = g.r.IntN(3), "write"
		y.At, y.On = x.At, x.On
		c.Beside = []op{x, y}
		out = append(out, with("import", a, small, seed), tag(a), with("import", b, small, seed+1), c)
	case 3: // Files are written while their draft is sealed.
		out = append(out, with("draft", b, 0, 0))
		for i := range 1 + g.r.IntN(3) {
			write := with("write", b, small, seed+uint64(i))
			write.Off = -1
			out = append(out, write)
		}
		c := with("seal", b, 0, 0)
		for range 1 + g.r.IntN(3) {
			write := out[1+g.r.IntN(len(out)-1)]
			write.ID = g.next()
			c.Beside = append(c.Beside, g.first(write))
		}
		out = append(out, c)
	}
	return append(out, op{ID: g.next(), Do: "reopen"})
}

func (g *generator) next() int {
	g.id++
	return g.id
}
