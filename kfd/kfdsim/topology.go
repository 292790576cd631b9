package kfdsim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Types of io_links and memory banks in the topology tree.
const (
	linkPCIe = 2
	linkXGMI = 11

	heapSystem  = 0
	heapPublic  = 1
	heapPrivate = 2
)

// topoLink is an io_link of a node.
type topoLink struct{ typ, to int }

// WriteTopology writes the topology tree of a machine that is not simulated, into the folder sys: what a host's /sys
// would show. Only what Options say of GPUs and CPU nodes counts.
func WriteTopology(sys string, o Options) error {
	o.Dir = filepath.Dir(sys)
	if err := o.Validate(); err != nil {
		return err
	}
	s := &Sim{opts: o}
	for i, cfg := range o.GPUs {
		s.gpus = append(s.gpus, &gpu{sim: s, node: o.CPUNodes + i, cfg: cfg, model: cfg.model()})
	}
	return s.writeTopology(sys)
}

// writeTopology writes the tree that the driver shows under
// /sys/class/kfd/kfd/topology and what libdrm reads under /sys/dev/char. Cache
// folders are left out, their number is not.
func (s *Sim) writeTopology(sys string) error {
	root := filepath.Join(sys, "class/kfd/kfd/topology")
	files := map[string]string{
		filepath.Join(root, "generation_id"): "2\n",
		filepath.Join(root, "system_properties"): props([]prop{
			{"platform_oem", 0}, {"platform_id", 0}, {"platform_rev", 0}}),
	}
	node := func(i int, p []prop, gpuID uint32, banks [][]prop, links []topoLink) {
		dir := filepath.Join(root, "nodes", fmt.Sprint(i))
		files[filepath.Join(dir, "properties")] = props(p)
		files[filepath.Join(dir, "gpu_id")] = fmt.Sprintln(gpuID)
		files[filepath.Join(dir, "name")] = "\n"
		for n, b := range banks {
			files[filepath.Join(dir, "mem_banks", fmt.Sprint(n), "properties")] = props(b)
		}
		for n, l := range links {
			files[filepath.Join(dir, "io_links", fmt.Sprint(n), "properties")] = props([]prop{
				{"type", uint64(l.typ)}, {"version_major", 0}, {"version_minor", 0}, {"node_from", uint64(i)},
				{"node_to", uint64(l.to)},
				{"weight", 20}, {"min_latency", 0}, {"max_latency", 0}, {"min_bandwidth", 312},
				{"max_bandwidth", 31504},
				{"recommended_transfer_size", 0}, {"recommended_sdma_engine_id_mask", 0}, {"flags", 1}})
		}
	}
	links := s.topologyLinks()
	for i := range s.opts.CPUNodes {
		node(i, cpuProperties(len(links[i])), 0, [][]prop{{{"heap_type", heapSystem}, {"size_in_bytes", 64 << 30},
			{"flags", 0}, {"width", 64}, {"mem_clk_max", 3200}}}, links[i])
	}
	for _, g := range s.gpus {
		node(g.node, g.properties(len(links[g.node])), g.cfg.ID, [][]prop{g.bank()}, links[g.node])
		dev := filepath.Join(sys, "dev/char", fmt.Sprintf("%d:%d", abi.DRMMajor, g.cfg.RenderMinor))
		name := fmt.Sprintf("renderD%d", g.cfg.RenderMinor)
		files[filepath.Join(dev, "uevent")] = fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=dri/%s\nDEVTYPE=drm_minor\n",
			abi.DRMMajor, g.cfg.RenderMinor, name)
		files[filepath.Join(dev, "device/vendor")] = fmt.Sprintf("%#04x\n", abi.PCIVendorAMD)
		files[filepath.Join(dev, "device/device")] = fmt.Sprintf("%#04x\n", g.model.DeviceID)
		files[filepath.Join(dev, "device/uevent")] = fmt.Sprintf("DRIVER=amdgpu\nPCI_ID=%04X:%04X\nPCI_SLOT_NAME=%s\n",
			abi.PCIVendorAMD, g.model.DeviceID, g.pciSlot())
		files[filepath.Join(dev, "device/drm", name, "dev")] = fmt.Sprintf("%d:%d\n", abi.DRMMajor, g.cfg.RenderMinor)
		// By its primary node libdrm tells one GPU from another.
		primary := g.cfg.RenderMinor - firstRender
		files[filepath.Join(dev, fmt.Sprintf("device/drm/card%d/dev", primary))] = fmt.Sprintf("%d:%d\n", abi.DRMMajor,
			primary)
	}
	// The driver makes the folder for a node without links, too, and CRIU's plugin needs it.
	for i := range s.opts.CPUNodes + len(s.gpus) {
		if err := os.MkdirAll(filepath.Join(root, "nodes", fmt.Sprint(i), "io_links"), 0o755); err != nil {
			return err
		}
	}
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// topologyLinks gives every node its links, both ways.
func (s *Sim) topologyLinks() map[int][]topoLink {
	links := map[int][]topoLink{}
	both := func(typ, a, b int) {
		links[a] = append(links[a], topoLink{typ, b})
		links[b] = append(links[b], topoLink{typ, a})
	}
	for i, g := range s.gpus {
		both(linkPCIe, g.node, g.cfg.NUMANode)
		for _, o := range s.gpus[:i] {
			if g.cfg.Hive != 0 && g.cfg.Hive == o.cfg.Hive {
				both(linkXGMI, g.node, o.node)
			}
		}
	}
	return links
}

// prop is a line of a properties file.
type prop struct {
	name string
	val  uint64
}

func props(list []prop) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s %d\n", p.name, p.val)
	}
	return b.String()
}

func cpuProperties(links int) []prop {
	p := []prop{{"cpu_cores_count", 16}, {"simd_count", 0}, {"mem_banks_count", 1}, {"caches_count", 0},
		{"io_links_count", uint64(links)}}
	for _, name := range []string{"p2p_links_count", "cpu_core_id_base", "simd_id_base", "max_waves_per_simd",
		"lds_size_in_kb",
		"gds_size_in_kb", "num_gws", "wave_front_size", "array_count", "simd_arrays_per_engine", "cu_per_simd_array",
		"simd_per_cu",
		"max_slots_scratch_cu", "gfx_target_version", "vendor_id", "device_id", "location_id", "domain",
		"drm_render_minor", "hive_id",
		"num_sdma_engines", "num_sdma_xgmi_engines", "num_sdma_queues_per_engine", "num_cp_queues"} {
		p = append(p, prop{name, 0})
	}
	return append(p, prop{"max_engine_clk_ccompute", 3200})
}

// device numbers the devices, and the partitions of each.
func (g *gpu) device() (number, partition uint64) {
	at, n := uint64(g.cfg.RenderMinor-firstRender), uint64(g.cfg.Partitions)
	return at / n, at % n
}

// busNumber spreads devices over PCI buses.
func (g *gpu) busNumber() uint64 {
	number, _ := g.device()
	return number*4 + 3
}

// location has the partition in its highest bits.
func (g *gpu) location() uint64 {
	_, partition := g.device()
	return partition<<28 | g.busNumber()<<8
}

func (g *gpu) pciSlot() string { return fmt.Sprintf("0000:%02x:00.0", g.busNumber()) }

func (g *gpu) properties(links int) []prop {
	m := g.model
	list := []prop{
		{"cpu_cores_count", 0}, {"simd_count", uint64(m.SIMDCount)}, {"mem_banks_count", 1},
		{"caches_count", uint64(m.Caches)},
		{"io_links_count", uint64(links)}, {"p2p_links_count", 0}, {"cpu_core_id_base", 0},
		{"simd_id_base", 2147487744},
		{"max_waves_per_simd", uint64(m.MaxWavesPerSIMD)}, {"lds_size_in_kb", uint64(m.LDSKiB)}, {"gds_size_in_kb", 0},
		{"num_gws", uint64(m.NumGWS)}, {"wave_front_size", uint64(m.WaveFrontSize)},
		{"array_count", uint64(m.ArrayCount)},
		{"simd_arrays_per_engine", 1}, {"cu_per_simd_array", uint64(m.CUPerArray)},
		{"simd_per_cu", uint64(m.SIMDPerCU)},
		{"max_slots_scratch_cu", 32}, {"gfx_target_version", uint64(m.GFXTarget)}, {"vendor_id", abi.PCIVendorAMD},
		{"device_id", uint64(m.DeviceID)}, {"location_id", g.location()}, {"domain", 0},
		{"drm_render_minor", uint64(g.cfg.RenderMinor)}, {"hive_id", g.cfg.Hive},
		{"num_sdma_engines", uint64(m.SDMAEngines)},
		{"num_sdma_xgmi_engines", uint64(m.XGMIEngines)}, {"num_sdma_queues_per_engine", uint64(m.QueuesPerEngine)},
		{"num_cp_queues", uint64(m.CPQueues)}, {"max_engine_clk_fcompute", 1700}, {"local_mem_size", 0},
		{"fw_version", uint64(g.cfg.FirmwareVersion)}, {"capability", uint64(m.Capability)}, {"debug_prop", 1511},
		{"sdma_fw_version", uint64(g.cfg.SDMAFirmwareVersion)}, {"unique_id", uint64(g.cfg.ID) * 0x9e3779b9},
		{"num_xcc", uint64(g.xccs())},
		{"max_engine_clk_ccompute", 3200},
	}
	for i, p := range list {
		if val, ok := g.cfg.Properties[p.name]; ok {
			list[i].val = val
		}
	}
	return list
}

// bank is the GPU's memory: public when all of it is behind the BAR.
func (g *gpu) bank() []prop {
	heap := uint64(heapPrivate)
	if g.cfg.VisibleVRAM == g.cfg.VRAM {
		heap = heapPublic
	}
	return []prop{{"heap_type", heap}, {"size_in_bytes", g.cfg.VRAM}, {"flags", 0}, {"width", 4096},
		{"mem_clk_max", 1000}}
}
