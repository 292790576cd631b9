package topology

import "slices"

// Property is one number that the KFD tells about a node. The names are those
// of sysfs; VRAMPublic and VRAMSize come from the node's memory bank.
type Property int

// Properties of a node. A CPU has CPUCoresCount alone.
const (
	CPUCoresCount Property = iota
	SIMDCount
	MemBanksCount
	CachesCount
	IOLinksCount
	MaxWavesPerSIMD
	LDSSizeInKB
	NumGWS
	WaveFrontSize
	ArrayCount
	SIMDArraysPerEngine
	CUPerSIMDArray
	SIMDPerCU
	MaxSlotsScratchCU
	VendorID
	DeviceID
	Domain
	DRMRenderMinor
	HiveID
	NumSDMAEngines
	NumSDMAXGMIEngines
	NumSDMAQueuesPerEngine
	NumCPQueues
	FWVersion
	Capability
	SDMAFWVersion
	VRAMPublic
	VRAMSize
	NumProperties

	// usableLinks is no property of its own: the count of usable links, which
	// mismatches are told by.
	usableLinks
)

var propertyNames = [...]string{
	CPUCoresCount:          "cpu_cores_count",
	SIMDCount:              "simd_count",
	MemBanksCount:          "mem_banks_count",
	CachesCount:            "caches_count",
	IOLinksCount:           "io_links_count",
	MaxWavesPerSIMD:        "max_waves_per_simd",
	LDSSizeInKB:            "lds_size_in_kb",
	NumGWS:                 "num_gws",
	WaveFrontSize:          "wave_front_size",
	ArrayCount:             "array_count",
	SIMDArraysPerEngine:    "simd_arrays_per_engine",
	CUPerSIMDArray:         "cu_per_simd_array",
	SIMDPerCU:              "simd_per_cu",
	MaxSlotsScratchCU:      "max_slots_scratch_cu",
	VendorID:               "vendor_id",
	DeviceID:               "device_id",
	Domain:                 "domain",
	DRMRenderMinor:         "drm_render_minor",
	HiveID:                 "hive_id",
	NumSDMAEngines:         "num_sdma_engines",
	NumSDMAXGMIEngines:     "num_sdma_xgmi_engines",
	NumSDMAQueuesPerEngine: "num_sdma_queues_per_engine",
	NumCPQueues:            "num_cp_queues",
	FWVersion:              "fw_version",
	Capability:             "capability",
	SDMAFWVersion:          "sdma_fw_version",
	VRAMPublic:             "vram_public",
	VRAMSize:               "vram_size",
	NumProperties:          "",
	usableLinks:            "usable io_links",
}

// String returns the property's name.
func (p Property) String() string { return propertyNames[p] }

// MarshalText makes a property readable in JSON.
func (p Property) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// LinkType is the type of an I/O link (HSA_IOLINKTYPE).
type LinkType uint32

// Types of links that matter. The parser drops all others.
const (
	PCIe LinkType = 2
	XGMI LinkType = 11
)

// String returns the type's usual spelling.
func (t LinkType) String() string {
	switch t {
	case PCIe:
		return "PCIe"
	case XGMI:
		return "XGMI"
	}
	return "other"
}

// Link is a one-way I/O link from the node that holds it.
type Link struct {
	Type LinkType
	To   uint32 // node id; the node need not exist
}

// Node is a CPU or a GPU.
type Node struct {
	ID    uint32
	GPUID uint32 // 0 for a CPU
	Props [NumProperties]uint64
	Links []Link
	// Listed is the node's place in the directory of its host: CRIU's plugin takes
	// nodes, and their links, in the order in which directories list them, and maps
	// the first of an image onto the first of a host.
	Listed int
}

// IsGPU tells GPUs from CPUs.
func (n *Node) IsGPU() bool { return n.GPUID != 0 }

// System is the topology of one machine, or of one as a checkpoint knew it.
type System struct {
	Nodes []*Node
}

// GPUs returns the GPUs in the order of the nodes.
func (s *System) GPUs() []*Node {
	var out []*Node
	for _, n := range s.Nodes {
		if n.IsGPU() {
			out = append(out, n)
		}
	}
	return out
}

// GPU returns the GPU of that id, nil if there is none.
func (s *System) GPU(gpuID uint32) *Node {
	for _, n := range s.Nodes {
		if n.IsGPU() && n.GPUID == gpuID {
			return n
		}
	}
	return nil
}

// node returns the node of that id, nil if there is none.
func (s *System) node(id uint32) *Node {
	for _, n := range s.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// bidirectional reports whether the peer links back by the same type.
func bidirectional(from *Node, l Link, peer *Node) bool {
	return slices.Contains(peer.Links, Link{Type: l.Type, To: from.ID})
}

// usable counts the links of a node whose peer exists.
func (s *System) usable(n *Node) int {
	count := 0
	for _, l := range n.Links {
		if s.node(l.To) != nil {
			count++
		}
	}
	return count
}

// Hives returns the XGMI hives: GPUs that are joined, directly or through
// others, by XGMI links in both directions. Both levels are in node order.
func (s *System) Hives() [][]*Node {
	hive := map[*Node]int{}
	var hives [][]*Node
	for _, start := range s.GPUs() {
		if _, done := hive[start]; done || len(s.xgmiPeers(start)) == 0 {
			continue
		}
		id := len(hives)
		hive[start] = id
		for todo := []*Node{start}; len(todo) > 0; {
			n := todo[0]
			todo = todo[1:]
			for _, peer := range s.xgmiPeers(n) {
				if _, done := hive[peer]; !done {
					hive[peer] = id
					todo = append(todo, peer)
				}
			}
		}
		hives = append(hives, nil)
	}
	for _, n := range s.GPUs() {
		if id, ok := hive[n]; ok {
			hives[id] = append(hives[id], n)
		}
	}
	return hives
}

func (s *System) xgmiPeers(n *Node) []*Node {
	var out []*Node
	for _, l := range n.Links {
		peer := s.node(l.To)
		if l.Type == XGMI && peer != nil && peer != n && peer.IsGPU() && bidirectional(n, l, peer) {
			out = append(out, peer)
		}
	}
	return out
}
