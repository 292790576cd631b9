package topology

import (
	"fmt"
	"testing"
)

// build makes topologies for tests: nodes are added in order, links by node id.
type build struct{ System }

func (b *build) cpu() uint32 {
	n := &Node{ID: uint32(len(b.Nodes))}
	n.Props[CPUCoresCount] = 1
	b.Nodes = append(b.Nodes, n)
	return n.ID
}

func (b *build) gpu(gpuID uint32, deviceID uint64) uint32 {
	n := &Node{ID: uint32(len(b.Nodes)), GPUID: gpuID}
	n.Props[DeviceID] = deviceID
	b.Nodes = append(b.Nodes, n)
	return n.ID
}

func (b *build) link(t LinkType, from uint32, to ...uint32) {
	for _, to := range to {
		b.Nodes[from].Links = append(b.Nodes[from].Links, Link{Type: t, To: to})
	}
}

func (b *build) both(t LinkType, x, y uint32) {
	b.link(t, x, y)
	b.link(t, y, x)
}

// mesh joins nodes by links in both directions, each with each.
func (b *build) mesh(t LinkType, ids ...uint32) {
	for _, x := range ids {
		for _, y := range ids {
			if x != y {
				b.link(t, x, y)
			}
		}
	}
}

// octo is the machine of most cases: CPUs 0 and 1; GPUs 2–5 and 6–9, of one
// model each, that link to CPU 0 and 1 in turn. back lists the GPUs to which
// their CPU links back.
func octo(base uint32, model, model2 uint64, back ...uint32) *build {
	b := &build{}
	b.cpu()
	b.cpu()
	for i := range uint32(8) {
		id, m := base+i, model
		if i >= 4 {
			id, m = base+0x10+i, model2
		}
		b.link(PCIe, b.gpu(id, m), i%2)
	}
	for _, g := range back {
		b.link(PCIe, g%2, g)
	}
	return b
}

var everyGPU = []uint32{2, 3, 4, 5, 6, 7, 8, 9}

// peers adds PCIe links from each of some GPUs to each of others.
func (b *build) peers(from, to []uint32) *build {
	for _, x := range from {
		b.link(PCIe, x, to...)
	}
	return b
}

func (b *build) hives(hives ...[]uint32) *build {
	for _, h := range hives {
		b.mesh(XGMI, h...)
	}
	return b
}

var first, second = everyGPU[:4], everyGPU[4:]

// quint is the machine of cases 6 and 8: CPU 0 and GPUs 1–5, all linked to it
// in both directions, and PCIe links among the GPUs.
func quint(base uint32, models [5]uint64, links map[uint32][]uint32) *build {
	b := &build{}
	b.cpu()
	for i, m := range models {
		b.both(PCIe, b.gpu(base+uint32(i), m), 0)
	}
	for from, to := range links {
		b.link(PCIe, from, to...)
	}
	return b
}

func upstreamCases() []struct {
	name     string
	src, dst *build
	ok       bool
} {
	const A, B, d0, d1 = 0xa000, 0xb000, 0xd000, 0xd001
	partly := []uint32{2, 3, 4, 5, 6, 7}
	case0 := func(base uint32, m, m2 uint64) *build {
		return octo(base, m, m2, everyGPU...).hives(first, second).peers(first, second).peers(second, first)
	}
	case1 := func(base uint32, m, m2 uint64) *build {
		return octo(base, m, m2, partly...).hives(first, second).peers(first, []uint32{6, 7}).peers(second, first)
	}
	case5 := func(base uint32) *build {
		b := octo(base, d0, d0, everyGPU...).hives(first).peers(first, second).peers(second, first)
		b.mesh(PCIe, second...)
		return b
	}
	// Case 7: the GPUs of the second half link to no CPU, and on the host are
	// a hive of their own.
	case7 := func(base uint32, hives ...[]uint32) *build {
		b := octo(base, d0, d0).hives(hives...)
		for _, g := range second {
			links := b.Nodes[g].Links
			b.Nodes[g].Links = links[1:]
		}
		return b
	}
	// Cases 6 and 8: PCIe links among GPUs by node.
	four := map[uint32][]uint32{1: {2, 3, 4}, 2: {1, 3, 4}, 3: {1, 2, 4}, 4: {1, 2, 3}, 5: {1, 2, 3, 4}}
	three := map[uint32][]uint32{1: {2, 3}, 2: {1, 3}, 3: {1, 2}, 4: {1, 2, 3}, 5: {1, 2, 3}}

	return []struct {
		name     string
		src, dst *build
		ok       bool
	}{
		{"0: two hives, models swapped", case0(A, d0, d1), case0(B, d1, d0), true},
		{"1: two hives, some GPUs without links back", case1(A, d0, d0), case1(B, d0, d0), true},
		{"2: as 1, models swapped", case1(A, d0, d1), case1(B, d1, d0), false},
		{"3: one GPU a hive with a link back, at other places", octo(A, d0, d1, 4, 9).hives(first, second),
			octo(B, d0, d1, 2, 7).hives(first, second), true},
		{"4: as 3, one link back at a GPU of the wrong CPU", octo(A, d0, d1, 4, 9).hives(first, second),
			case4(B, d0, d1), false},
		{"5: one hive of four, four GPUs without", case5(A), case5(B), true},
		{"6: five GPUs of two models at other places", quint(A, [5]uint64{d0, d0, d1, d0, d1}, four),
			quint(B, [5]uint64{d0, d1, d0, d0, d1}, four), true},
		{"7: the host has a hive more", case7(A, first), case7(B, first, second), true},
		{"8: the host has more links", quint(A, [5]uint64{d0, d0, d0, d0, d0}, three),
			quint(B, [5]uint64{d0, d0, d0, d0, d0}, four), true},
	}
}

// case4 is the host of case 4, whose CPU 1 links back to GPU 6, which itself
// links to CPU 0.
func case4(base uint32, m, m2 uint64) *build {
	b := octo(base, m, m2, 2).hives(first, second)
	b.link(PCIe, 1, 6)
	return b
}

func TestUpstreamCases(t *testing.T) {
	for _, c := range upstreamCases() {
		m, ok := Map(&c.src.System, &c.dst.System, 0)
		if ok != c.ok {
			t.Errorf("case %s: mapped %v, want %v", c.name, ok, c.ok)
		}
		if !ok {
			continue
		}
		if err := verify(&c.src.System, &c.dst.System, 0, m); err != nil {
			t.Errorf("case %s: %v: %v", c.name, m, err)
		}
		// Upstream asks as many CPUs in the map as there are: all have links.
		if cpus := len(c.src.Nodes) - len(c.src.GPUs()); len(m.CPUs) != cpus {
			t.Errorf("case %s: %d CPUs mapped, want %d", c.name, len(m.CPUs), cpus)
		}
	}
}

// TestForcedPairs checks the pairs that upstream's comments single out.
func TestForcedPairs(t *testing.T) {
	cases := upstreamCases()
	m, _ := Map(&cases[3].src.System, &cases[3].dst.System, 0)
	for _, want := range []Pair{{0xa002, 0xb000}, {0xa017, 0xb015}} {
		if !contains(m.GPUs, want) {
			t.Errorf("case 3: %v lacks %v", m.GPUs, want)
		}
	}
	if want := []Pair{{0, 0}, {1, 1}}; fmt.Sprint(m.CPUs) != fmt.Sprint(want) {
		t.Errorf("case 3: CPUs %v, want %v", m.CPUs, want)
	}
	// What upstream's search misses: three GPUs that differ in VRAM alone.
	vram := func(base uint32, sizes ...uint64) *System {
		b := &build{}
		for i, v := range sizes {
			b.Nodes[b.gpu(base+uint32(i), 1)].Props[VRAMSize] = v
		}
		return &b.System
	}
	m, ok := Map(vram(0xa0, 3, 1, 2), vram(0xb0, 2, 1, 3), 0)
	if want := []Pair{{0xa0, 0xb2}, {0xa1, 0xb1}, {0xa2, 0xb0}}; !ok || fmt.Sprint(m.GPUs) != fmt.Sprint(want) {
		t.Errorf("VRAM {3,1,2} onto {2,1,3}: %v, want %v", m, want)
	}
}

func contains(pairs []Pair, want Pair) bool {
	for _, p := range pairs {
		if p == want {
			return true
		}
	}
	return false
}

func TestHostMapsOntoItself(t *testing.T) {
	for _, c := range upstreamCases() {
		for _, s := range []*System{&c.src.System, &c.dst.System} {
			m, ok := Map(s, s, 0)
			if !ok {
				t.Errorf("case %s does not map onto itself", c.name)
				continue
			}
			for _, p := range append(m.GPUs, m.CPUs...) {
				if p.Src != p.Dst {
					t.Errorf("case %s: %v does not stay where it is", c.name, p)
				}
			}
		}
	}
}
