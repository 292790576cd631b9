package topology

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// single is a machine of one CPU and one GPU with every property set.
func single(gpuID uint32, change func(*Node)) *System {
	b := &build{}
	b.cpu()
	g := b.gpu(gpuID, 0x74a1)
	b.both(PCIe, g, 0)
	n := b.Nodes[g]
	for p := range NumProperties {
		if p != DeviceID {
			n.Props[p] = 100 + uint64(p)
		}
	}
	n.Props[VRAMSize] = 64 << 30
	n.Props[VendorID] = 0x1002
	if change != nil {
		change(n)
	}
	return &b.System
}

// TestEachSwitch shows each check to fail with the text that a user sees, to
// pass once waived by its own switch and no other, and to pass where the host
// is better.
func TestEachSwitch(t *testing.T) {
	set := func(p Property, v uint64) func(*Node) { return func(n *Node) { n.Props[p] = v } }
	twoCPUs := func(gpuID uint32, cpus ...uint32) *System {
		b := &build{}
		b.cpu()
		b.cpu()
		for i, c := range cpus {
			b.both(PCIe, b.gpu(gpuID+uint32(i), 1), c)
		}
		return &b.System
	}
	for _, c := range []struct {
		sw     Switch
		src    *System
		worse  *System
		better *System // nil where only equal will do
		text   string
	}{
		{FWVer, single(0xa, set(FWVersion, 477)), single(0xb, set(FWVersion, 460)), single(0xb, set(FWVersion, 480)),
			"GPU 0xa onto 0xb: fw_version is 477 in the checkpoint and 460 here, must be at least that " +
				"(KFD_FW_VER_CHECK=0 waives this)"},
		{SDMAFWVer, single(0xa, set(SDMAFWVersion, 18)), single(0xb, set(SDMAFWVersion, 17)),
			single(0xb, set(SDMAFWVersion, 19)),
			"GPU 0xa onto 0xb: sdma_fw_version is 18 in the checkpoint and 17 here, must be at least that " +
				"(KFD_SDMA_FW_VER_CHECK=0 waives this)"},
		{Caches, single(0xa, set(CachesCount, 206)), single(0xb, set(CachesCount, 205)),
			single(0xb, set(CachesCount, 207)),
			"GPU 0xa onto 0xb: caches_count is 206 in the checkpoint and 205 here, must be at least that " +
				"(KFD_CACHES_COUNT_CHECK=0 waives this)"},
		{GWS, single(0xa, set(NumGWS, 64)), single(0xb, set(NumGWS, 0)), single(0xb, set(NumGWS, 65)),
			"GPU 0xa onto 0xb: num_gws is 64 in the checkpoint and 0 here, must be at least that " +
				"(KFD_NUM_GWS_CHECK=0 waives this)"},
		{VRAM, single(0xa, nil), single(0xb, set(VRAMSize, 32<<30)), single(0xb, set(VRAMSize, 128<<30)),
			"GPU 0xa onto 0xb: vram_size is 64 GiB (68719476736 bytes) in the checkpoint and 32 GiB (34359738368 " +
				"bytes) here, must be at least that (KFD_VRAM_SIZE_CHECK=0 waives this)"},
		{Caps, single(0xa, set(Capability, 0x71)), single(0xb, set(Capability, 0xf1)), nil,
			"GPU 0xa onto 0xb: capability is 0x71 in the checkpoint and 0xf1 here, must be equal " +
				"(KFD_CAPABILITY_CHECK=0 waives this)"},
		{NUMA, twoCPUs(0xa, 0, 0), twoCPUs(0xb, 0, 1), nil,
			"the GPUs would not keep their CPUs: CPU 0 with GPUs 0xa (PCIe, both ways), 0xb (PCIe, both ways) " +
				"(KFD_NUMA_CHECK=0 waives this)"},
	} {
		if _, ok := Map(c.src, c.worse, 0); ok {
			t.Errorf("%v: maps onto the worse host", c.sw)
		}
		e := Explain(c.src, c.worse, 0)
		if e == nil {
			t.Errorf("%v: no explanation", c.sw)
			continue
		}
		want := []string{c.text, "hint: the checkpoint maps onto this host with " + c.sw.String() + "=0"}
		if got := e.Lines(); !slices.Equal(got, want) {
			t.Errorf("%v: told\n%s\nwant\n%s", c.sw, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if !slices.Equal(e.Waive, []Switch{c.sw}) {
			t.Errorf("%v: to be waived %v", c.sw, e.Waive)
		}
		for _, other := range Switches() {
			if _, ok := Map(c.src, c.worse, Waive(other)); ok != (other == c.sw) {
				t.Errorf("%v: with %v=0 mapped %v", c.sw, other, ok)
			}
		}
		if e := Explain(c.src, c.worse, Waive(c.sw)); e != nil {
			t.Errorf("%v: waived, and still %v", c.sw, e.Lines())
		}
		if c.better != nil {
			if _, ok := Map(c.src, c.better, 0); !ok {
				t.Errorf("%v: does not map onto the better host", c.sw)
			}
		} else if _, ok := Map(c.worse, c.src, 0); ok {
			t.Errorf("%v: maps the other way round", c.sw)
		}
	}
}

// TestPartitions tells GPUs that are partitions of the same devices from others.
func TestPartitions(t *testing.T) {
	cut := func(n uint64) func(*Node) {
		return func(g *Node) { g.Props[SIMDCount], g.Props[ArrayCount] = 1216/n, 32/n }
	}
	other := func(g *Node) { g.Props[SIMDCount], g.Props[ArrayCount] = 608, 32 }
	for _, c := range []struct {
		src, dst func(*Node)
		want     string
	}{
		{cut(2), cut(1), "a GPU of the checkpoint is a partition of 1/2 of a GPU of this host"},
		{cut(1), cut(8), "a GPU of this host is a partition of 1/8 of a GPU of the checkpoint"},
		{cut(1), other, ""},
		{func(g *Node) { g.Props[SIMDCount] = 0 }, cut(1), ""},
	} {
		lines := Explain(single(0xa, c.src), single(0xb, c.dst), 0).Lines()
		found := strings.Contains(lines[0], "partitioned otherwise here: "+c.want)
		if found != (c.want != "") {
			t.Errorf("told %q, want %q", lines, c.want)
		}
	}
}

// TestEveryProperty changes one property after the other.
func TestEveryProperty(t *testing.T) {
	ignored := []Property{CPUCoresCount, Domain, DRMRenderMinor, HiveID}
	atLeast := map[Property]Switch{CachesCount: Caches, NumGWS: GWS, FWVersion: FWVer, SDMAFWVersion: SDMAFWVer,
		VRAMSize: VRAM}
	src := single(0xa, nil)
	for p := range NumProperties {
		for _, up := range []bool{true, false} {
			dst := single(0xb, func(n *Node) {
				if up {
					n.Props[p]++
				} else {
					n.Props[p]--
				}
			})
			_, ok := Map(src, dst, 0)
			_, more := atLeast[p]
			if want := slices.Contains(ignored, p) || more && up; ok != want {
				t.Errorf("%v, higher %v: mapped %v, want %v", p, up, ok, want)
			}
			if ok {
				continue
			}
			e := Explain(src, dst, 0)
			if len(e.GPUs) != 1 || len(e.GPUs[0].Mismatches) != 1 || e.GPUs[0].Mismatches[0].Property != p {
				t.Errorf("%v: explained by %+v", p, e)
				continue
			}
			m := e.GPUs[0].Mismatches[0]
			if m.Need != src.Nodes[1].Props[p] || m.Have != dst.Nodes[1].Props[p] || m.AtLeast != more {
				t.Errorf("%v: mismatch %+v", p, m)
			}
			waivable := more || p == Capability
			if waivable != (m.Switch != nil) || waivable != strings.Contains(m.String(), "=0 waives this") ||
				waivable != (len(e.Waive) == 1) {
				t.Errorf("%v: waivable %v, mismatch %v, hint %v", p, waivable, m, e.Waive)
			}
		}
	}
}

func TestExplainMoreThanPairs(t *testing.T) {
	gpus := func(base uint32, models ...uint64) *build {
		b := &build{}
		for i, m := range models {
			b.gpu(base+uint32(i), m)
		}
		return b
	}
	hive := func(b *build, ids ...uint32) *System { b.mesh(XGMI, ids...); return &b.System }
	cpuLink := func(t LinkType, back bool) *System {
		b := &build{}
		b.cpu()
		g := b.gpu(0xa, 1)
		b.link(t, g, 0)
		if back {
			b.link(t, 0, g)
		}
		b.link(PCIe, g, g) // as many links on either side
		return &b.System
	}
	vram := func(s *System, gpu uint32, v uint64) *System { s.GPU(gpu).Props[VRAMSize] = v; return s }

	for _, c := range []struct {
		name     string
		src, dst *System
		lines    []string
	}{
		{"fewer GPUs", &gpus(0xa, 1, 1).System, &gpus(0x1, 1).System,
			[]string{"the checkpoint was made with 2 GPUs visible, this host shows 1 GPU: the numbers must be equal"}},
		{"more GPUs", &gpus(0xa, 1).System, &gpus(0x1, 1, 1).System,
			[]string{"the checkpoint was made with 1 GPU visible, this host shows 2 GPUs: the numbers must be equal"}},
		{"no GPU", &gpus(0xa, 1).System, &System{},
			[]string{"the checkpoint was made with 1 GPU visible, this host shows 0 GPUs: the numbers must be equal"}},
		{"wrong model", &gpus(0xa, 1, 2).System, &gpus(0x1, 1, 1).System,
			[]string{"GPU 0xb onto 0x1: device_id is 0x2 in the checkpoint and 0x1 here, must be equal"}},
		{"contention", &gpus(0xa, 1, 1, 2).System, &gpus(0x1, 1, 2, 2).System,
			[]string{"GPUs 0xb, 0xa of the checkpoint fit only 0x1 of this host"}},
		{"no hive", hive(gpus(0xa, 1, 1), 0, 1), hive(gpus(0x1, 1, 1)),
			[]string{
				"GPU 0xa onto 0x1: usable io_links is 1 in the checkpoint and 0 here, must be at least that",
				"GPU 0xb onto 0x1: usable io_links is 1 in the checkpoint and 0 here, must be at least that"}},
		{"hive too small", hive(gpus(0xa, 1, 1, 1, 1), 0, 1, 2, 3), func() *System {
			b := gpus(0x1, 1, 1, 1, 1)
			b.mesh(XGMI, 0, 1)
			b.mesh(XGMI, 2, 3)
			b.mesh(PCIe, 0, 1, 2, 3)
			return &b.System
		}(), []string{"the checkpoint's XGMI hives (0xa+0xb+0xc+0xd) do not fit into this host's (0x1+0x2, 0x3+0x4)"}},
		{"one-way link", cpuLink(PCIe, true), cpuLink(PCIe, false),
			[]string{"links to CPUs have no counterpart of at least their kind: the checkpoint has CPU 0 with GPUs " +
				"0xa (PCIe, both ways), this host CPU 0 with GPUs 0xa (PCIe, one-way)"}},
		{"slower link", cpuLink(XGMI, false), cpuLink(PCIe, false),
			[]string{"links to CPUs have no counterpart of at least their kind: the checkpoint has CPU 0 with GPUs " +
				"0xa (XGMI, one-way), this host CPU 0 with GPUs 0xa (PCIe, one-way)"}},
		{"a waivable and a hopeless one", vram(&gpus(0xa, 1, 2).System, 0xa, 9), &gpus(0x1, 1, 1).System,
			[]string{
				"GPU 0xa onto 0x1: vram_size is 9 B (9 bytes) in the checkpoint and 0 B (0 bytes) here, must be at " +
					"least that (KFD_VRAM_SIZE_CHECK=0 waives this)",
				"GPU 0xb onto 0x1: device_id is 0x2 in the checkpoint and 0x1 here, must be equal"}},
	} {
		e := Explain(c.src, c.dst, 0)
		if e == nil {
			t.Errorf("%s: it maps", c.name)
			continue
		}
		if got := e.Lines(); !slices.Equal(got, c.lines) {
			t.Errorf("%s: told\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.lines, "\n"))
		}
		if len(e.Waive) > 0 {
			t.Errorf("%s: %v would help", c.name, e.Waive)
		}
	}
}

func TestSmallestWaiver(t *testing.T) {
	// Each GPU fails one check on either of two hosts: two switches suffice
	// though three properties differ.
	src, dst := &build{}, &build{}
	for i := range uint32(2) {
		n := src.Nodes[src.gpu(0xa+i, 1)]
		n.Props[FWVersion], n.Props[VRAMSize] = 10, 10
		n = dst.Nodes[dst.gpu(0x1+i, 1)]
		n.Props[FWVersion], n.Props[VRAMSize] = 10-uint64(i), 9+uint64(i)
	}
	e := Explain(&src.System, &dst.System, 0)
	if want := []Switch{FWVer, VRAM}; !slices.Equal(e.Waive, want) || len(e.GPUs) != 2 {
		t.Errorf("waive %v, want %v: %v", e.Waive, want, e.Lines())
	}
	// What is waived already is not advised again.
	e = Explain(&src.System, &dst.System, Waive(FWVer))
	if want := []Switch{VRAM}; !slices.Equal(e.Waive, want) || len(e.GPUs) != 1 {
		t.Errorf("waive %v, want %v: %v", e.Waive, want, e.Lines())
	}
	b, err := json.Marshal(e)
	if want := `{"waive":["KFD_VRAM_SIZE_CHECK"],"gpus":[{"checkpoint":10,"host":1,"mismatches":[` +
		`{"property":"vram_size","checkpoint":10,"host":9,"at_least":true,` +
		`"switch":"KFD_VRAM_SIZE_CHECK"}]}]}`; err != nil || string(b) != want {
		t.Errorf("JSON %s, %v", b, err)
	}
}

// partitioned is a large machine: sockets×4 CPUs and as many GPUs split into
// eight partitions each, which form one hive.
func partitioned(base uint32, cpus, parts int) *build {
	b := &build{}
	for range cpus {
		b.cpu()
	}
	var ids []uint32
	for i := range cpus * parts {
		g := b.gpu(base+uint32(i), 1)
		b.both(PCIe, g, uint32(i/parts))
		ids = append(ids, g)
	}
	b.mesh(XGMI, ids...)
	return b
}

// TestLargeMachines maps 64 GPUs on 8 CPUs, possible and not. Trying
// assignments would take longer than there is time.
func TestLargeMachines(t *testing.T) {
	src := partitioned(0xa000, 8, 8)
	if m, ok := Map(&src.System, &partitioned(0xb000, 8, 8).System, 0); !ok || len(m.GPUs) != 64 || len(m.CPUs) != 8 {
		t.Errorf("64 equal GPUs do not map: %v", m)
	}
	// A partition on the wrong CPU.
	dst := partitioned(0xb000, 8, 8)
	dst.Nodes[8].Links[0].To, dst.Nodes[0].Links = 7, dst.Nodes[0].Links[1:]
	dst.link(PCIe, 7, 8)
	if e := Explain(&src.System, &dst.System, 0); e == nil || !slices.Equal(e.Waive, []Switch{NUMA}) {
		t.Errorf("a GPU on another CPU: %v", e)
	}
	// One with less VRAM, and one of another model.
	for i := range 64 {
		src.Nodes[8+i].Props[VRAMSize] = 24 << 30
		dst.Nodes[8+i].Props[VRAMSize] = 24 << 30
	}
	dst.Nodes[70].Props[VRAMSize]--
	if e := Explain(&src.System, &dst.System, 0); e == nil || !slices.Equal(e.Waive, []Switch{VRAM, NUMA}) {
		t.Errorf("less VRAM besides: %v", e)
	}
	dst.Nodes[70].Props[DeviceID]++
	if e := Explain(&src.System, &dst.System, 0); e == nil || len(e.Waive) > 0 ||
		!strings.Contains(fmt.Sprint(e.Lines()), "fit only") {
		t.Errorf("another model besides: %v", e)
	}
}
