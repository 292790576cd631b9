package kfd

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// Host is the machine a checkpoint is to be restored on.
type Host struct {
	// Topology is nil where no KFD topology was found.
	Topology *topology.System
	// Driver is nil where the driver cannot be asked, as when only a
	// topology tree is given. Its version is not checked then.
	Driver *DriverVersion
}

// Report is the answer of [Check]. [Report.Lines] formats it for a user.
type Report struct {
	OK bool `json:"ok"`
	// Problems concern no process in particular; a line each.
	Problems []string          `json:"problems,omitempty"`
	Driver   *DriverVersion    `json:"driver,omitempty"`
	Waived   []topology.Switch `json:"waived,omitempty"`
	// Processes is empty for a checkpoint without GPU state.
	Processes []ProcessReport `json:"processes"`
	Memory    []GPUMemory     `json:"memory,omitempty"`
	// HostBytes is what GTT buffer objects take of the host's memory.
	HostBytes int64 `json:"host_bytes"`
}

// ProcessReport is the answer for one process image.
type ProcessReport struct {
	Image string `json:"image"`
	PID   uint32 `json:"pid"`
	OK    bool   `json:"ok"`
	// GPUs and CPUs are the mapping found.
	GPUs []GPUPair       `json:"gpus,omitempty"`
	CPUs []topology.Pair `json:"cpus,omitempty"`
	// Obstacles says why there is no mapping. It is nil when there is one.
	Obstacles *topology.Explanation `json:"obstacles,omitempty"`
}

// GPUPair is a GPU of the checkpoint and the GPU of the host that it is mapped to.
type GPUPair struct {
	topology.Pair
	RenderMinor uint32 `json:"render_minor"` // of the host's GPU
	VRAMBytes   int64  `json:"vram_bytes"`   // that the process's buffer objects take
	GTTBytes    int64  `json:"gtt_bytes"`
}

// GPUMemory is what a checkpoint needs of one of the host's GPUs.
type GPUMemory struct {
	GPUID uint32 `json:"gpu_id"`
	Need  uint64 `json:"need_bytes"`
	Have  uint64 `json:"have_bytes"` // its whole VRAM, used or free
}

// Check says whether the GPU state of a checkpoint can be restored on a host
// under these settings. A checkpoint without GPU state always can.
func Check(set *image.Set, host Host, settings topology.Settings) *Report {
	r := &Report{Driver: host.Driver, Waived: settings.Waived.List(), Processes: []ProcessReport{}}
	if set.Empty() {
		r.OK = true
		return r
	}
	if host.Driver != nil {
		if problem := host.Driver.problem(); problem != "" {
			r.Problems = append(r.Problems, problem)
		}
	}
	if host.Topology == nil {
		r.Problems = append(r.Problems,
			"the checkpoint has GPU state and this host has no KFD (hint: is the amdgpu driver loaded?)")
		return r
	}
	partner := map[uint32]bool{}
	for _, p := range set.Processes {
		pr := checkProcess(p, host.Topology, settings.Waived)
		r.Processes = append(r.Processes, pr)
		for _, d := range p.Message.Devices {
			partner[d.GetGpuId()] = d.GetGpuId() != 0
		}
	}
	for _, n := range set.RenderNodes {
		if id := n.Message.GetGpuId(); !partner[id] {
			r.Problems = append(r.Problems,
				fmt.Sprintf("%s is of GPU %#x, which no process of the checkpoint lists", n.Name, id))
		}
	}
	r.addMemory(host.Topology)
	r.OK = len(r.Problems) == 0 && !slices.ContainsFunc(r.Processes, func(p ProcessReport) bool { return !p.OK })
	return r
}

func checkProcess(p image.Process, host *topology.System, w topology.Waived) ProcessReport {
	pr := ProcessReport{Image: p.Name, PID: p.Message.GetPid()}
	src := Topology(p.Message)
	m, ok := topology.Map(src, host, w)
	if !ok {
		pr.Obstacles = topology.Explain(src, host, w)
		return pr
	}
	pr.OK, pr.CPUs = true, m.CPUs
	for _, pair := range m.GPUs {
		g := GPUPair{Pair: pair, RenderMinor: uint32(host.GPU(pair.Dst).Props[topology.DRMRenderMinor])}
		for _, bo := range p.Layout.BOs {
			switch {
			case bo.GPUID != pair.Src:
			case bo.Kind == image.VRAM:
				g.VRAMBytes += min(bo.Size, math.MaxInt64-g.VRAMBytes)
			case bo.Kind == image.GTT:
				g.GTTBytes += min(bo.Size, math.MaxInt64-g.GTTBytes)
			}
		}
		pr.GPUs = append(pr.GPUs, g)
	}
	return pr
}

// addMemory adds up what the mapped processes need.
func (r *Report) addMemory(host *topology.System) {
	need := map[uint32]uint64{}
	for _, p := range r.Processes {
		for _, g := range p.GPUs {
			need[g.Dst] += min(uint64(g.VRAMBytes), math.MaxUint64-need[g.Dst])
			r.HostBytes += min(g.GTTBytes, math.MaxInt64-r.HostBytes)
		}
	}
	for _, n := range host.GPUs() {
		if need[n.GPUID] == 0 {
			continue
		}
		m := GPUMemory{GPUID: n.GPUID, Need: need[n.GPUID], Have: n.Props[topology.VRAMSize]}
		r.Memory = append(r.Memory, m)
		if m.Need > m.Have {
			r.Problems = append(r.Problems,
				fmt.Sprintf("GPU %#x has %s of VRAM, the checkpoint's buffer objects need %s of it",
					m.GPUID, humanize.IBytes(m.Have), humanize.IBytes(m.Need)))
		}
	}
}

// Lines formats the report for a user, one fact a line.
func (r *Report) Lines() []string {
	if r.OK && len(r.Processes) == 0 {
		return []string{"no GPU state"}
	}
	out := slices.Clone(r.Problems)
	if len(r.Waived) > 0 {
		var names []string
		for _, s := range r.Waived {
			names = append(names, s.String())
		}
		out = append(out, "not checked: "+strings.Join(names, ", "))
	}
	for _, p := range r.Processes {
		if !p.OK {
			out = append(out, fmt.Sprintf("process %d: its GPUs do not map onto this host's", p.PID))
			for _, line := range p.Obstacles.Lines() {
				out = append(out, "  "+line)
			}
			continue
		}
		out = append(out, fmt.Sprintf("process %d: its GPUs map onto this host's", p.PID))
		for _, g := range p.GPUs {
			out = append(out, fmt.Sprintf("  GPU %#x -> %#x (renderD%d), %s of VRAM, %s of GTT", g.Src, g.Dst,
				g.RenderMinor,
				humanize.IBytes(uint64(g.VRAMBytes)), humanize.IBytes(uint64(g.GTTBytes))))
		}
		for _, c := range p.CPUs {
			out = append(out, fmt.Sprintf("  CPU %d -> %d", c.Src, c.Dst))
		}
	}
	return out
}

// Topology returns the machine that a process was dumped on, as its image
// tells it. GPU ids are those the process knows.
func Topology(p *imagepb.Process) *topology.System {
	s := &topology.System{}
	for _, d := range p.Devices {
		n := &topology.Node{ID: d.GetNodeId(), GPUID: d.GetGpuId()}
		// The image's fields have the names of the sysfs properties.
		m := d.ProtoReflect()
		for prop := range topology.NumProperties {
			fd := m.Descriptor().Fields().ByName(protoreflect.Name(prop.String()))
			n.Props[prop] = m.Get(fd).Uint()
		}
		for _, l := range d.Links {
			n.Links = append(n.Links, topology.Link{Type: topology.LinkType(l.GetType()), To: l.GetNodeToId()})
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// DriverVersion is the version of the KFD's interface.
type DriverVersion struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// String returns "MAJOR.MINOR".
func (v DriverVersion) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// problem says why checkpoint and restore do not work with this driver, "" if
// they do.
func (v DriverVersion) problem() string {
	if v.Major == abi.KFDMajorVersion && v.Minor >= abi.KFDMinMinorForCR {
		return ""
	}
	return fmt.Sprintf("KFD interface version is %v, %d.%d or a later %[2]d.x is needed "+
		"(hint: update the kernel or the amdgpu driver)",
		v, abi.KFDMajorVersion, abi.KFDMinMinorForCR)
}
