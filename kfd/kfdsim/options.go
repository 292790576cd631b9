package kfdsim

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// Options describes the simulated machine. The zero value of a field means its
// default.
type Options struct {
	// Dir is an existing empty directory that receives the mount (dev/), the
	// topology tree (sys/), the shim (shim.so) and the control socket.
	Dir string
	// GPUs are the devices, in the order of their topology nodes. Default: two
	// of model "mi50".
	GPUs []GPU
	// CPUNodes is the number of CPU nodes before them. Default 1.
	CPUNodes int
	// KFDMinor is the interface version the driver reports, 1.KFDMinor.
	// Default 14; CRIU needs 8.
	KFDMinor uint32
	// DoorbellPoll is how often an idle queue looks at its doorbell. Default
	// 500 µs.
	DoorbellPoll time.Duration
	// CheckFills makes it a fault of a queue to come to VRAM or GTT that a
	// RESTORE made and no submission of the DRM side has filled. What is filled by
	// mapping is not seen: leave it off for those who do so.
	CheckFills bool
	// Logger receives refusals with their reasons at level Debug, faults of
	// the GPU at Warn. Default: discarded.
	Logger *slog.Logger
}

// GPU is one simulated device. Model gives the defaults of the other fields.
type GPU struct {
	Model string // a key of Models; default "mi50"
	// ID is the KFD's gpu_id, below 1<<15. Default: a number made from the
	// model and the position.
	ID uint32
	// RenderMinor is the number in /dev/dri/renderD*. Default 128 and up.
	RenderMinor int
	VRAM        uint64 // bytes; default 4 GiB
	// VisibleVRAM is the part of VRAM behind the BAR, in bytes. Less than VRAM
	// means that BOs with the PUBLIC flag are refused. Default: all of it.
	VisibleVRAM uint64
	// GTT is the limit of system memory for this GPU's BOs, in bytes. Default
	// 16 GiB.
	GTT uint64
	// DMARate limits what the SDMA engines move together, in bytes per
	// second. 0 is as fast as this machine copies.
	DMARate float64
	// Resident is how much memory for BOs exists from the start, in bytes, and
	// is used again for others. Memory that does not costs 1 s a GB when it is
	// first touched, which no GPU's does: set it for measurements. Default 0.
	Resident uint64
	// Hive joins GPUs of the same nonzero number by XGMI links, each with
	// each.
	Hive uint64
	// Partitions says that it is one of so many partitions of a device, as others whose
	// render nodes are beside its own: it has that share of the model's dies. VRAM is its own. Default 1.
	Partitions uint32
	NUMANode   int // CPU node that the PCIe link goes to
	// FirmwareVersion and SDMAFirmwareVersion default to the model's.
	FirmwareVersion     uint32
	SDMAFirmwareVersion uint32
	// Properties replace those of its topology node: "num_gws", "caches_count" and so on.
	Properties map[string]uint64
}

// Limits that the simulation sets.
const (
	// MaxGPUID bounds gpu ids: bits 46–60 of an mmap offset on /dev/kfd. The
	// driver has 16 bits there; a FUSE file's offsets end at 1<<63.
	MaxGPUID = 1<<15 - 1

	defaultVRAM   = 4 << 30
	defaultGTT    = 16 << 30
	defaultMinor  = 14
	firstRender   = 128
	lastRender    = 191
	defaultPoll   = 500 * time.Microsecond
	pageSize      = 4096
	maxSimProcess = 1 << 14
)

// PCIe3x16 is what one direction of a PCIe 3 x16 link carries, in bytes per
// second.
const PCIe3x16 = 15.8e9

// Validate fills in defaults and reports what cannot be simulated.
func (o *Options) Validate() error {
	if o.Dir == "" {
		return errors.New("kfdsim: no directory given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("kfdsim: directory: %w", err)
	}
	o.Dir = dir
	if len(o.GPUs) == 0 {
		o.GPUs = []GPU{{}, {}}
	}
	if o.CPUNodes == 0 {
		o.CPUNodes = 1
	}
	if o.KFDMinor == 0 {
		o.KFDMinor = defaultMinor
	}
	if o.DoorbellPoll == 0 {
		o.DoorbellPoll = defaultPoll
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CPUNodes < 0 || o.DoorbellPoll < 0 {
		return errors.New("kfdsim: cpu nodes and doorbell poll must not be negative")
	}
	if len(o.GPUs) > lastRender-firstRender+1 {
		return fmt.Errorf("kfdsim: %d gpus, at most %d", len(o.GPUs), lastRender-firstRender+1)
	}
	o.GPUs = append([]GPU(nil), o.GPUs...)
	ids, minors := map[uint32]bool{}, map[int]bool{}
	for i := range o.GPUs {
		if err := o.GPUs[i].setDefaults(i, o.CPUNodes); err != nil {
			return fmt.Errorf("kfdsim: gpu %d: %w", i, err)
		}
		g := o.GPUs[i]
		if ids[g.ID] || minors[g.RenderMinor] {
			return fmt.Errorf("kfdsim: gpu %d: id %d or render minor %d is taken", i, g.ID, g.RenderMinor)
		}
		ids[g.ID], minors[g.RenderMinor] = true, true
	}
	return nil
}

func (g *GPU) setDefaults(i, cpuNodes int) error {
	if g.Model == "" {
		g.Model = "mi50"
	}
	m, ok := Models[g.Model]
	if !ok {
		return fmt.Errorf("no model %q", g.Model)
	}
	if g.Partitions == 0 {
		g.Partitions = 1
	}
	if max(m.XCCs, 1)%g.Partitions != 0 {
		return fmt.Errorf("%d partitions of %d dies", g.Partitions, max(m.XCCs, 1))
	}
	if g.ID == 0 {
		g.ID = (m.DeviceID*31+uint32(i)*2311)%(MaxGPUID-1) + 1
	}
	if g.ID > MaxGPUID {
		return fmt.Errorf("id %d above %d", g.ID, MaxGPUID)
	}
	if g.RenderMinor == 0 {
		g.RenderMinor = firstRender + i
	}
	if g.RenderMinor < firstRender || g.RenderMinor > lastRender {
		return fmt.Errorf("render minor %d not in %d..%d", g.RenderMinor, firstRender, lastRender)
	}
	if g.VRAM == 0 {
		g.VRAM = defaultVRAM
	}
	if g.VisibleVRAM == 0 {
		g.VisibleVRAM = g.VRAM
	}
	if g.GTT == 0 {
		g.GTT = defaultGTT
	}
	if g.Resident%pageSize != 0 || g.Resident > g.VRAM+g.GTT {
		return fmt.Errorf("resident memory of %d bytes", g.Resident)
	}
	if g.VisibleVRAM > g.VRAM || g.VRAM%pageSize != 0 || g.VisibleVRAM%pageSize != 0 {
		return fmt.Errorf("visible vram %d of %d bytes", g.VisibleVRAM, g.VRAM)
	}
	if g.DMARate < 0 {
		return errors.New("negative dma rate")
	}
	if g.NUMANode < 0 || g.NUMANode >= cpuNodes {
		return fmt.Errorf("numa node %d of %d", g.NUMANode, cpuNodes)
	}
	if g.FirmwareVersion == 0 {
		g.FirmwareVersion = m.FirmwareVersion
	}
	if g.SDMAFirmwareVersion == 0 {
		g.SDMAFirmwareVersion = m.SDMAFirmwareVersion
	}
	return nil
}
