package topology

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// This file states the rules once more, as conditions on a finished mapping,
// and searches by trying every one. It shares no code with the search.

// verify returns the first rule that a mapping breaks.
func verify(src, dst *System, w Waived, m *Mapping) error {
	gpus := map[uint32]*Node{}
	taken := map[uint32]bool{}
	for _, p := range m.GPUs {
		s, d := src.GPU(p.Src), dst.GPU(p.Dst)
		if s == nil || d == nil || gpus[p.Src] != nil || taken[p.Dst] {
			return fmt.Errorf("pair %v is not one of free GPUs", p)
		}
		gpus[p.Src], taken[p.Dst] = d, true
		if !propertiesAgree(s, d, w) {
			return fmt.Errorf("pair %v: properties", p)
		}
		if countUsable(src, s) > countUsable(dst, d) {
			return fmt.Errorf("pair %v: count of links", p)
		}
	}
	if len(gpus) != len(src.GPUs()) || len(gpus) != len(dst.GPUs()) {
		return fmt.Errorf("%d of %d GPUs are mapped, onto a host with %d", len(gpus), len(src.GPUs()), len(dst.GPUs()))
	}
	if !hivesAgree(src, dst, func(s *Node) *Node { return gpus[s.GPUID] }) {
		return fmt.Errorf("hives")
	}
	cpus := map[uint32]uint32{}
	back := map[uint32]bool{}
	for _, p := range m.CPUs {
		if _, twice := cpus[p.Src]; twice || back[p.Dst] || find(src, p.Src) == nil || find(dst, p.Dst) == nil {
			return fmt.Errorf("pair %v is not one of free CPUs", p)
		}
		cpus[p.Src], back[p.Dst] = p.Dst, true
	}
	if !cpuLinksAgree(src, dst, w, func(s *Node) *Node { return gpus[s.GPUID] },
		func(c uint32) (uint32, bool) { d, ok := cpus[c]; return d, ok }) {
		return fmt.Errorf("links to CPUs")
	}
	return nil
}

func find(s *System, id uint32) *Node {
	for _, n := range s.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

func countUsable(s *System, n *Node) int {
	c := 0
	for _, l := range n.Links {
		if find(s, l.To) != nil {
			c++
		}
	}
	return c
}

func propertiesAgree(s, d *Node, w Waived) bool {
	for _, p := range []Property{
		SIMDCount, MemBanksCount, IOLinksCount, MaxWavesPerSIMD, LDSSizeInKB, WaveFrontSize, ArrayCount,
		SIMDArraysPerEngine,
		CUPerSIMDArray, SIMDPerCU, MaxSlotsScratchCU, VendorID, DeviceID, NumSDMAEngines, NumSDMAXGMIEngines,
		NumSDMAQueuesPerEngine, NumCPQueues, VRAMPublic,
	} {
		if s.Props[p] != d.Props[p] {
			return false
		}
	}
	return (w.Has(Caps) || s.Props[Capability] == d.Props[Capability]) &&
		(w.Has(VRAM) || s.Props[VRAMSize] <= d.Props[VRAMSize]) &&
		(w.Has(GWS) || s.Props[NumGWS] <= d.Props[NumGWS]) &&
		(w.Has(Caches) || s.Props[CachesCount] <= d.Props[CachesCount]) &&
		(w.Has(FWVer) || s.Props[FWVersion] <= d.Props[FWVersion]) &&
		(w.Has(SDMAFWVer) || s.Props[SDMAFWVersion] <= d.Props[SDMAFWVersion])
}

// colour gives each GPU the number of its hive, 0 for none, by letting the
// smallest number spread until nothing changes.
func colour(s *System) map[*Node]int {
	c := map[*Node]int{}
	joined := func(a, b *Node) bool {
		has := func(n *Node, to uint32) bool {
			for _, l := range n.Links {
				if l.Type == XGMI && l.To == to {
					return true
				}
			}
			return false
		}
		return a != b && a.GPUID != 0 && b.GPUID != 0 && has(a, b.ID) && has(b, a.ID)
	}
	for i, a := range s.Nodes {
		for _, b := range s.Nodes {
			if joined(a, b) {
				c[a] = i + 1
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, a := range s.Nodes {
			for _, b := range s.Nodes {
				if joined(a, b) && c[b] > c[a] {
					c[b], changed = c[a], true
				}
			}
		}
	}
	return c
}

func hivesAgree(src, dst *System, partner func(*Node) *Node) bool {
	return coloursAgree(src, colour(src), colour(dst), partner)
}

func coloursAgree(src *System, from, to map[*Node]int, partner func(*Node) *Node) bool {
	hive := map[int]int{}
	taken := map[int]int{}
	for _, s := range src.Nodes {
		h := from[s]
		if h == 0 {
			continue
		}
		d := to[partner(s)]
		if d == 0 || hive[h] != 0 && hive[h] != d || taken[d] != 0 && taken[d] != h {
			return false
		}
		hive[h], taken[d] = d, h
	}
	return true
}

func cpuLinksAgree(src, dst *System, w Waived, partner func(*Node) *Node, cpu func(uint32) (uint32, bool)) bool {
	both := func(sys *System, n *Node, l Link) bool {
		for _, back := range find(sys, l.To).Links {
			if back == (Link{l.Type, n.ID}) {
				return true
			}
		}
		return false
	}
	isCPU := func(sys *System, id uint32) bool { n := find(sys, id); return n != nil && n.GPUID == 0 }
	upgrades := map[uint32]int{}
	for _, s := range src.Nodes {
		if s.GPUID == 0 {
			continue
		}
		for _, l := range s.Links {
			if !isCPU(src, l.To) {
				continue
			}
			to, mapped := cpu(l.To)
			if !w.Has(NUMA) && !mapped {
				return false
			}
			any, same := false, false
			d := partner(s)
			for _, k := range d.Links {
				if !isCPU(dst, k.To) || !w.Has(NUMA) && k.To != to || l.Type == XGMI && k.Type == PCIe ||
					both(src, s, l) && !both(dst, d, k) {
					continue
				}
				any, same = true, same || k.Type == l.Type
			}
			if !any {
				return false
			}
			if !same {
				upgrades[l.To]++
			}
		}
	}
	for _, n := range upgrades {
		if n > 1 && !w.Has(NUMA) {
			return false
		}
	}
	return true
}

// brute tries every assignment of GPUs and, for each, every one of CPUs.
func brute(src, dst *System, w Waived) bool {
	s, d := src.GPUs(), dst.GPUs()
	if len(s) != len(d) {
		return false
	}
	ok := make([][]bool, len(s))
	for i := range s {
		ok[i] = make([]bool, len(d))
		for j := range d {
			ok[i][j] = propertiesAgree(s[i], d[j], w) && countUsable(src, s[i]) <= countUsable(dst, d[j])
		}
	}
	from, to := colour(src), colour(dst)
	var srcCPUs, dstCPUs []uint32
	for _, n := range dst.Nodes {
		if n.GPUID == 0 {
			dstCPUs = append(dstCPUs, n.ID)
		}
	}
	for _, n := range src.Nodes {
		linked := false
		for _, g := range s {
			for _, l := range g.Links {
				linked = linked || l.To == n.ID
			}
		}
		if n.GPUID == 0 && linked {
			srcCPUs = append(srcCPUs, n.ID)
		}
	}
	partner := map[*Node]*Node{}
	lookup := func(n *Node) *Node { return partner[n] }
	used := make([]bool, len(d))
	cpus := map[uint32]uint32{}
	cpuUsed := map[uint32]bool{}

	var tryCPU func(i int) bool
	tryCPU = func(i int) bool {
		if i == len(srcCPUs) || w.Has(NUMA) {
			return cpuLinksAgree(src, dst, w, lookup, func(c uint32) (uint32, bool) { v, ok := cpus[c]; return v, ok })
		}
		for _, c := range dstCPUs {
			if cpuUsed[c] {
				continue
			}
			cpus[srcCPUs[i]], cpuUsed[c] = c, true
			if tryCPU(i + 1) {
				return true
			}
			cpuUsed[c] = false
		}
		return false
	}
	var tryGPU func(i int) bool
	tryGPU = func(i int) bool {
		if i == len(s) {
			return coloursAgree(src, from, to, lookup) && tryCPU(0)
		}
		for j := range d {
			if ok[i][j] && !used[j] {
				partner[s[i]], used[j] = d[j], true
				if tryGPU(i + 1) {
					return true
				}
				used[j] = false
			}
		}
		return false
	}
	return tryGPU(0)
}

// randomPair makes a checkpoint and a host that are alike: the host is the
// checkpoint shuffled, and then either is changed a little.
func randomPair(r *rand.Rand) (src, dst *System) {
	b := &build{}
	cpus := r.IntN(4)
	for range cpus {
		b.cpu()
	}
	gpus := 1 + r.IntN(8)
	models := 1 + r.IntN(3)
	link := func() LinkType {
		if r.IntN(6) == 0 {
			return XGMI
		}
		return PCIe
	}
	ids := []uint32{}
	for i := range gpus {
		g := b.gpu(0xa000+uint32(i), uint64(r.IntN(models)))
		ids = append(ids, g)
		for _, p := range []Property{VRAMSize, FWVersion, SDMAFWVersion, CachesCount, NumGWS, Capability} {
			b.Nodes[g].Props[p] = 5 + uint64(r.IntN(1+r.IntN(3)))
		}
		for range min(cpus, 1+r.IntN(5)/4) {
			cpu, t := uint32(r.IntN(cpus)), link()
			b.link(t, g, cpu)
			if r.IntN(4) > 0 {
				b.link(t, cpu, g)
			}
		}
	}
	for rest := ids; r.IntN(3) > 0 && len(rest) > 1; {
		n := 2 + r.IntN(len(rest)-1)
		b.mesh(XGMI, rest[:n]...)
		rest = rest[n:]
	}
	if r.IntN(2) == 0 {
		b.mesh(PCIe, ids[:r.IntN(len(ids)+1)]...)
	}
	if r.IntN(8) == 0 {
		b.link(PCIe, ids[0], 99) // a hidden peer
	}
	return &b.System, mutate(r, shuffled(r, &b.System))
}

// shuffled returns the system with its nodes renumbered.
func shuffled(r *rand.Rand, s *System) *System {
	to := r.Perm(len(s.Nodes))
	out := &System{Nodes: make([]*Node, len(s.Nodes))}
	for i, n := range s.Nodes {
		c := *n
		c.ID = uint32(to[i])
		if n.IsGPU() {
			c.GPUID = 0xb000 + c.ID
		}
		c.Links = nil
		for _, l := range n.Links {
			if int(l.To) < len(to) {
				l.To = uint32(to[l.To])
			}
			c.Links = append(c.Links, l)
		}
		r.Shuffle(len(c.Links), func(a, b int) { c.Links[a], c.Links[b] = c.Links[b], c.Links[a] })
		out.Nodes[c.ID] = &c
	}
	return out
}

// mutate changes a few numbers and links, mostly for the better.
func mutate(r *rand.Rand, s *System) *System {
	for range r.IntN(5) {
		n := s.Nodes[r.IntN(len(s.Nodes))]
		switch r.IntN(6) {
		case 0:
			n.Props[[]Property{VRAMSize, FWVersion, SDMAFWVersion, CachesCount, NumGWS}[r.IntN(5)]]++
		case 1:
			p := []Property{VRAMSize, FWVersion, SDMAFWVersion, CachesCount, NumGWS, Capability}[r.IntN(6)]
			n.Props[p] = 5 + uint64(r.IntN(3))
		case 2:
			other := s.Nodes[r.IntN(len(s.Nodes))]
			if n != other {
				t := []LinkType{PCIe, XGMI}[r.IntN(2)]
				n.Links = append(n.Links, Link{t, other.ID})
				if r.IntN(2) == 0 {
					other.Links = append(other.Links, Link{t, n.ID})
				}
			}
		case 3:
			if len(n.Links) > 0 {
				i := r.IntN(len(n.Links))
				n.Links = append(n.Links[:i:i], n.Links[i+1:]...)
			}
		case 4:
			if len(n.Links) > 0 {
				i := r.IntN(len(n.Links))
				n.Links[i].Type = []LinkType{PCIe, XGMI}[r.IntN(2)]
			}
		case 5:
			if len(n.Links) > 0 {
				n.Links[r.IntN(len(n.Links))].To = uint32(r.IntN(len(s.Nodes)))
			}
		}
	}
	return s
}

// TestEqualsBruteForce holds the search against all assignments on 20,000
// random pairs of topologies of up to 8 GPUs.
func TestEqualsBruteForce(t *testing.T) {
	const pairs = 20_000
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	start := time.Now()
	var ours time.Duration
	yes, eight := 0, 0
	for i := range pairs {
		src, dst := randomPair(r)
		var w Waived
		if r.IntN(2) == 0 {
			w = Waived(r.IntN(1 << numSwitches))
		}
		began := time.Now()
		m, ok := Map(src, dst, w)
		ours += time.Since(began)
		if want := brute(src, dst, w); ok != want {
			t.Fatalf("seed %d, pair %d, waived %v: mapped %v, brute force says %v\n%s\n%s", seed, i, w.List(), ok, want,
				dump(src), dump(dst))
		}
		if len(src.GPUs()) == 8 {
			eight++
		}
		if !ok {
			continue
		}
		yes++
		if err := verify(src, dst, w, m); err != nil {
			t.Fatalf("seed %d, pair %d, waived %v: %v breaks %v\n%s\n%s", seed, i, w.List(), *m, err, dump(src),
				dump(dst))
		}
	}
	t.Logf("%d pairs (%d of 8 GPUs), %d with a mapping, in %v, of which the search took %v", pairs, eight, yes,
		time.Since(start), ours)
	if yes < pairs/5 || yes > pairs*4/5 {
		t.Errorf("%d of %d pairs have a mapping: the generator is lopsided", yes, pairs)
	}
}

func dump(s *System) string {
	out := ""
	for _, n := range s.Nodes {
		out += fmt.Sprintf("node %d gpu %#x props %v links %v\n", n.ID, n.GPUID, n.Props, n.Links)
	}
	return out
}
