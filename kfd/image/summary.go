package image

import (
	"fmt"
	"math"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Summary is what a person wants to know of a checkpoint's GPU side.
type Summary struct {
	Schema      Schema           `json:"schema"`
	Processes   []ProcessSummary `json:"processes"`
	RenderNodes []NodeSummary    `json:"render_nodes,omitempty"`
	Dmabufs     int              `json:"dmabufs,omitempty"`
	Totals      []KindTotal      `json:"totals"` // by kind, over all images
	VRAMBytes   int64            `json:"vram_bytes"`
	GTTBytes    int64            `json:"gtt_bytes"`
}

// KindTotal counts the BOs of one kind.
type KindTotal struct {
	Kind  Kind  `json:"kind"`
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// ProcessSummary is one open /dev/kfd.
type ProcessSummary struct {
	Image string       `json:"image"`
	PID   uint32       `json:"pid"`
	GPUs  []GPUSummary `json:"gpus"`
	// What follows comes from the private data and is absent, with the
	// reason, when that is of an unknown version.
	XNACK    bool           `json:"xnack"`
	Queues   []QueueSummary `json:"queues,omitempty"`
	Events   int            `json:"events"`
	Ranges   int            `json:"svm_ranges"`
	PrivNote string         `json:"private_data_note,omitempty"`
}

// GPUSummary is one GPU of a process.
type GPUSummary struct {
	GPUID       uint32      `json:"gpu_id"` // as the process knows it
	DeviceID    uint32      `json:"device_id"`
	RenderMinor uint32      `json:"render_minor"`
	VRAMSize    uint64      `json:"vram_size"` // of the GPU it was dumped on
	BOs         []KindTotal `json:"bos"`
}

// QueueSummary is one user-mode queue.
type QueueSummary struct {
	ID       uint32 `json:"id"`
	GPUID    uint32 `json:"gpu_id"`
	Type     string `json:"type"` // "compute", "aql" or "sdma"
	RingSize uint64 `json:"ring_size"`
	Priority uint32 `json:"priority"`
}

// NodeSummary is one open render node.
type NodeSummary struct {
	Image string      `json:"image"`
	GPUID uint32      `json:"gpu_id"`
	BOs   []KindTotal `json:"bos"`
}

// Summary condenses the set.
func (s *Set) Summary() Summary {
	sum := Summary{Schema: s.Schema, Dmabufs: len(s.Dmabufs), Totals: totals(s.BOs())}
	for _, t := range sum.Totals {
		switch t.Kind {
		case VRAM:
			sum.VRAMBytes = t.Bytes
		case GTT:
			sum.GTTBytes = t.Bytes
		}
	}
	for _, p := range s.Processes {
		sum.Processes = append(sum.Processes, p.summary())
	}
	for _, r := range s.RenderNodes {
		sum.RenderNodes = append(sum.RenderNodes, NodeSummary{
			Image: r.Name, GPUID: r.Message.GetGpuId(), BOs: totals(r.Layout.BOs),
		})
	}
	return sum
}

func (p Process) summary() ProcessSummary {
	out := ProcessSummary{Image: p.Name, PID: p.Message.GetPid()}
	byGPU := map[uint32]*counts{}
	for _, bo := range p.Layout.BOs {
		if byGPU[bo.GPUID] == nil {
			byGPU[bo.GPUID] = &counts{}
		}
		byGPU[bo.GPUID].add(bo)
	}
	for _, d := range p.Message.Devices {
		if gpu := d.GetGpuId(); gpu != 0 {
			out.GPUs = append(out.GPUs, GPUSummary{
				GPUID: gpu, DeviceID: d.GetDeviceId(), RenderMinor: d.GetDrmRenderMinor(), VRAMSize: d.GetVramSize(),
				BOs: byGPU[gpu].list(),
			})
		}
	}
	priv, err := p.PrivData()
	if err != nil {
		out.PrivNote = err.Error()
		return out
	}
	out.XNACK = priv.XNACKMode != 0
	out.Events, out.Ranges = len(priv.Events), len(priv.Ranges)
	for _, q := range priv.Queues {
		out.Queues = append(out.Queues, QueueSummary{
			ID: q.QID, GPUID: q.GPUID, Type: queueType(q.KFDPrivQueue), RingSize: q.QSize, Priority: q.Priority,
		})
	}
	return out
}

// PrivData parses the private data of the image.
func (p Process) PrivData() (*PrivData, error) {
	m := p.Message
	priv, err := ParsePrivData(m.PrivData, int(m.GetNumOfGpus()), len(m.Bos), m.GetNumOfObjects())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return priv, nil
}

func queueType(q abi.KFDPrivQueue) string {
	switch {
	case q.Type == abi.KFDPrivQueueTypeCompute && q.Format == abi.KFDPrivQueueFormatAQL:
		return "aql"
	case q.Type == abi.KFDPrivQueueTypeCompute:
		return "compute"
	}
	return "sdma"
}

// totals counts BOs by kind, in the order of the kinds.
func totals(bos []BO) []KindTotal {
	var c counts
	for _, bo := range bos {
		c.add(bo)
	}
	return c.list()
}

// counts counts BOs by kind.
type counts [len(kindNames)]KindTotal

func (c *counts) add(bo BO) {
	t := &c[bo.Kind]
	t.Kind, t.Count = bo.Kind, t.Count+1
	// Sizes of BOs without contents are as the image claims: a sum
	// stops at the largest number instead of turning negative.
	t.Bytes += min(bo.Size, math.MaxInt64-t.Bytes)
}

// list gives the kinds of which there are any; nil counts have none.
func (c *counts) list() []KindTotal {
	out := []KindTotal{}
	if c == nil {
		return out
	}
	for _, t := range append(c[1:], c[0]) {
		if t.Count > 0 {
			out = append(out, t)
		}
	}
	return out
}
