package topology

import "slices"

// Pair is a device of the checkpoint and its partner on the host.
type Pair struct {
	Src uint32 `json:"checkpoint"`
	Dst uint32 `json:"host"`
}

// Mapping pairs all GPUs of a checkpoint with those of a host.
type Mapping struct {
	GPUs []Pair // by gpu_id, in the order of the checkpoint's nodes
	CPUs []Pair // by node id: the CPUs that GPUs link to; none if NUMA is waived
}

// Map returns a valid mapping of src, the checkpoint's topology, onto dst, the
// host's, and false if none exists. [Explain] says why.
func Map(src, dst *System, w Waived) (*Mapping, bool) {
	if len(src.GPUs()) != len(dst.GPUs()) {
		return nil, false
	}
	return newProblem(src, dst, w, all).solve()
}

// Constraints that a search may be told to leave out, to find out which of
// them stands in the way.
type constraints int

const (
	withHives constraints = 1 << iota
	withCPULinks
	all = withHives | withCPULinks
)

const (
	open  = -1 // the choice is not made
	loose = -2 // of cpu.exception: every link of the CPU may be the exception
)

// problem is one search. Devices are known by their index here.
type problem struct {
	src, dst []*Node // GPUs
	// fits is what no choice changes: properties and counts of links.
	fits [][]bool
	// near orders the host's GPUs by how much a GPU would like them.
	near [][]int

	srcHive, dstHive []int // hive of each GPU, open if none
	hives            []*choice
	cpus             []*choice
	numa             bool

	srcCPU []*Node     // the checkpoint's CPUs that GPUs link to
	links  [][]cpuLink // of each GPU of the checkpoint
	dstCPU []*Node     // the host's CPUs
	has    [][]linkSet // of each GPU of the host, by CPU
}

// choice is a hive or a CPU of the checkpoint that needs a partner.
type choice struct {
	values []int // candidates, the preferred first
	value  int   // partner, or open
	// exception is the link that may have a better type than the one it
	// replaces, as position in the order of GPUs and links; open for none.
	exception int
}

// cpuLink is a link of the checkpoint from a GPU to a CPU.
type cpuLink struct {
	cpu  int
	typ  LinkType
	both bool
	no   int // number among all links of that CPU
}

// linkSet is what links a GPU of the host has to one CPU.
type linkSet []struct {
	typ  LinkType
	both bool
}

// better reports whether any link replaces l.
func (s linkSet) better(l cpuLink) bool {
	for _, d := range s {
		if replaces(d.typ, d.both, l.typ, l.both) {
			return true
		}
	}
	return false
}

// same reports whether a link of the same type replaces l.
func (s linkSet) same(l cpuLink) bool {
	for _, d := range s {
		if d.typ == l.typ && replaces(d.typ, d.both, l.typ, l.both) {
			return true
		}
	}
	return false
}

func newProblem(src, dst *System, w Waived, c constraints) *problem {
	p := &problem{src: src.GPUs(), dst: dst.GPUs(), numa: c&withCPULinks != 0 && !w.Has(NUMA)}
	have := make([]int, len(p.dst))
	for j, d := range p.dst {
		have[j] = dst.usable(d)
	}
	for _, s := range p.src {
		fits := make([]bool, len(p.dst))
		near := make([]int, len(p.dst))
		need := src.usable(s)
		for j, d := range p.dst {
			fits[j] = need <= have[j] && len(Mismatches(s, d, w)) == 0
			near[j] = j
		}
		slices.SortStableFunc(near, func(a, b int) int { return distance(s, p.dst[a]) - distance(s, p.dst[b]) })
		p.fits, p.near = append(p.fits, fits), append(p.near, near)
	}
	p.addHives(src, dst, c)
	if c&withCPULinks != 0 {
		p.addCPULinks(src, dst)
	}
	return p
}

// distance ranks the GPU of the same id first, then the device of the same
// node.
func distance(s, d *Node) int {
	switch {
	case s.IsGPU() && s.GPUID == d.GPUID:
		return 0
	case s.ID == d.ID:
		return 1
	}
	return 2
}

func (p *problem) addHives(src, dst *System, c constraints) {
	index := func(gpus []*Node, hives [][]*Node) []int {
		out := make([]int, len(gpus))
		for i, n := range gpus {
			out[i] = slices.IndexFunc(hives, func(h []*Node) bool { return slices.Contains(h, n) })
		}
		return out
	}
	srcHives, dstHives := src.Hives(), dst.Hives()
	if c&withHives == 0 {
		srcHives = nil
	}
	p.srcHive, p.dstHive = index(p.src, srcHives), index(p.dst, dstHives)
	for _, h := range srcHives {
		ch := &choice{value: open}
		for i := range dstHives {
			ch.values = append(ch.values, i)
		}
		slices.SortStableFunc(ch.values, func(a, b int) int {
			return distance(h[0], dstHives[a][0]) - distance(h[0], dstHives[b][0])
		})
		p.hives = append(p.hives, ch)
	}
}

func (p *problem) addCPULinks(src, dst *System) {
	for _, n := range dst.Nodes {
		if !n.IsGPU() {
			p.dstCPU = append(p.dstCPU, n)
		}
	}
	count := map[int]int{}
	for _, s := range p.src {
		var links []cpuLink
		for _, l := range s.Links {
			peer := src.node(l.To)
			if peer == nil || peer.IsGPU() {
				continue
			}
			cpu := slices.Index(p.srcCPU, peer)
			if cpu < 0 {
				cpu = len(p.srcCPU)
				p.srcCPU = append(p.srcCPU, peer)
			}
			links = append(links, cpuLink{cpu, l.Type, bidirectional(s, l, peer), count[cpu]})
			count[cpu]++
		}
		p.links = append(p.links, links)
	}
	for _, d := range p.dst {
		sets := make([]linkSet, len(p.dstCPU))
		for _, l := range d.Links {
			peer := dst.node(l.To)
			if peer == nil || peer.IsGPU() {
				continue
			}
			cpu := slices.Index(p.dstCPU, peer)
			sets[cpu] = append(sets[cpu], struct {
				typ  LinkType
				both bool
			}{l.Type, bidirectional(d, l, peer)})
		}
		p.has = append(p.has, sets)
	}
	if !p.numa {
		return
	}
	for _, n := range p.srcCPU {
		ch := &choice{value: open, exception: loose}
		for i := range p.dstCPU {
			ch.values = append(ch.values, i)
		}
		slices.SortStableFunc(ch.values,
			func(a, b int) int { return distance(n, p.dstCPU[a]) - distance(n, p.dstCPU[b]) })
		p.cpus = append(p.cpus, ch)
	}
}

// allowed reports whether GPU i can become GPU j under the choices made so far,
// if all others turn out well for it.
func (p *problem) allowed(i, j int) bool {
	if !p.fits[i][j] {
		return false
	}
	if h := p.srcHive[i]; h != open {
		d := p.dstHive[j]
		if d == open || !allows(p.hives, h, d) {
			return false
		}
	}
	if p.links == nil {
		return true
	}
	for _, l := range p.links[i] {
		if !p.linkAllowed(l, p.has[j]) {
			return false
		}
	}
	return true
}

func (p *problem) linkAllowed(l cpuLink, has []linkSet) bool {
	for cpu, set := range has {
		if p.numa {
			if !allows(p.cpus, l.cpu, cpu) {
				continue
			}
			if e := p.cpus[l.cpu].exception; e != loose && e != l.no {
				if set.same(l) {
					return true
				}
				continue
			}
		}
		if set.better(l) {
			return true
		}
	}
	return false
}

// allows reports whether choice c may still take, or has taken, value v.
func allows(choices []*choice, c, v int) bool {
	if got := choices[c].value; got != open {
		return got == v
	}
	for _, other := range choices {
		if other.value == v {
			return false
		}
	}
	return true
}

// feasible reports whether the GPUs have a perfect matching under the choices
// made so far.
func (p *problem) feasible() bool {
	return perfect(len(p.src), len(p.dst), p.allowed, nil) != nil
}

func (p *problem) solve() (*Mapping, bool) {
	if !p.feasible() || !p.search() {
		return nil, false
	}
	return p.mapping(), true
}

// search makes all open choices and leaves them made if it succeeds.
func (p *problem) search() bool {
	var best *choice
	var bestValues []int
	for _, group := range [][]*choice{p.hives, p.cpus} {
		var pending []*choice
		var domains [][]int
		for _, c := range group {
			if c.value != open {
				continue
			}
			values := p.domain(group, c)
			pending, domains = append(pending, c), append(domains, values)
			if best == nil || len(values) < len(bestValues) {
				best, bestValues = c, values
			}
		}
		// All partners must differ.
		contains := func(i, v int) bool { return slices.Contains(domains[i], v) }
		if len(pending) > 0 && perfect(len(pending), len(pending[0].values), contains, nil) == nil {
			return false
		}
	}
	if best == nil {
		return p.searchExceptions(p.cpus)
	}
	for _, v := range bestValues {
		best.value = v
		if p.search() {
			return true
		}
	}
	best.value = open
	return false
}

// domain returns the values of a choice that leave the GPUs a matching.
func (p *problem) domain(group []*choice, c *choice) []int {
	i := slices.Index(group, c)
	var out []int
	for _, v := range c.values {
		if !allows(group, i, v) {
			continue
		}
		c.value = v
		if p.feasible() {
			out = append(out, v)
		}
		c.value = open
	}
	return out
}

// searchExceptions settles, once all pairs are made, which link of each CPU
// may be replaced by one of a better type.
func (p *problem) searchExceptions(cpus []*choice) bool {
	if len(cpus) == 0 {
		return true
	}
	links := 0
	for _, of := range p.links {
		for _, l := range of {
			if p.cpus[l.cpu] == cpus[0] {
				links++
			}
		}
	}
	for e := open; e < links; e++ {
		cpus[0].exception = e
		if p.feasible() && p.searchExceptions(cpus[1:]) {
			return true
		}
	}
	cpus[0].exception = loose
	return false
}

// mapping reads the result off a problem whose choices are all made, giving
// each GPU in turn the partner it likes best.
func (p *problem) mapping() *Mapping {
	m := &Mapping{}
	fixed := make([]int, len(p.src))
	for i := range fixed {
		fixed[i] = open
	}
	for i, s := range p.src {
		for _, j := range p.near[i] {
			fixed[i] = j
			if perfect(len(p.src), len(p.dst), p.allowed, fixed) != nil {
				break
			}
		}
		m.GPUs = append(m.GPUs, Pair{s.GPUID, p.dst[fixed[i]].GPUID})
	}
	for i, c := range p.cpus {
		m.CPUs = append(m.CPUs, Pair{p.srcCPU[i].ID, p.dstCPU[c.value].ID})
	}
	slices.SortFunc(m.CPUs, func(a, b Pair) int { return int(a.Src) - int(b.Src) })
	return m
}
