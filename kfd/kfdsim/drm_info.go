package kfdsim

import (
	"encoding/binary"
	"math/bits"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// VA ranges that the device info reports for libdrm's allocator: below and
// above the canonical hole.
const (
	infoVAOffset  = 2 << 20
	infoHighStart = 0xffff800000000000
)

func amdgpuInfo(c *drmCall) syscall.Errno {
	var args abi.AMDGPUInfoArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.ReturnSize == 0 || args.ReturnPointer == 0 {
		return c.sim.refuse(syscall.EINVAL, "info without room for an answer")
	}
	val, errno := c.infoValue(&args)
	if errno != 0 {
		return errno
	}
	return c.who.writeUser(args.ReturnPointer, val[:min(len(val), int(args.ReturnSize))])
}

func (c *drmCall) infoValue(args *abi.AMDGPUInfoArgs) ([]byte, syscall.Errno) {
	g := c.drm.gpu
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	c.sim.mu.Lock()
	vram, gtt := g.vramUsed, g.gttUsed
	c.sim.unlock()
	switch args.Query {
	case abi.AMDGPUInfoAccelWorking:
		return u32(1), 0
	case abi.AMDGPUInfoHWIPCount:
		n := uint32(0)
		if args.DwordOffset == abi.AMDGPUHWIPDMA {
			n = 1
		}
		return u32(n), 0
	case abi.AMDGPUInfoHWIPInfo:
		var out abi.AMDGPUInfoHWIP
		if args.DwordOffset == abi.AMDGPUHWIPDMA {
			out = abi.AMDGPUInfoHWIP{VersionMajor: uint32(g.model.SDMA), IBStartAlignment: 256, IBSizeAlignment: 32,
				AvailableRings: 1<<len(g.engines) - 1}
		}
		return appendStruct(nil, &out), 0
	case abi.AMDGPUInfoFWVersion:
		return appendStruct(nil, &abi.AMDGPUInfoFirmware{Ver: g.cfg.SDMAFirmwareVersion}), 0
	case abi.AMDGPUInfoVRAMUsage:
		return binary.NativeEndian.AppendUint64(nil, vram), 0
	case abi.AMDGPUInfoGTTUsage:
		return binary.NativeEndian.AppendUint64(nil, gtt), 0
	case abi.AMDGPUInfoVRAMGTT:
		return appendStruct(nil,
			&abi.AMDGPUInfoVRAMGTTSizes{VRAMSize: g.cfg.VRAM, VRAMCPUAccessibleSize: g.cfg.VisibleVRAM,
				GTTSize: g.cfg.GTT}), 0
	case abi.AMDGPUInfoMemory:
		heap := func(total, used uint64) abi.AMDGPUHeapInfo {
			return abi.AMDGPUHeapInfo{TotalHeapSize: total, UsableHeapSize: total, HeapUsage: used,
				MaxAllocation: total / 4 * 3}
		}
		return appendStruct(nil, &abi.AMDGPUMemoryInfo{VRAM: heap(g.cfg.VRAM, vram),
			CPUAccessibleVRAM: heap(g.cfg.VisibleVRAM, min(vram, g.cfg.VisibleVRAM)), GTT: heap(g.cfg.GTT, gtt)}), 0
	case abi.AMDGPUInfoReadMMRReg:
		// libdrm reads GB_ADDR_CONFIG and tiling registers while it opens a
		// device; nothing is made of them.
		if args.Count == 0 || args.Count > 128 {
			return nil, c.sim.refuse(syscall.EINVAL, "read of a number of registers", "count", args.Count)
		}
		return make([]byte, 4*args.Count), 0
	case abi.AMDGPUInfoDevInfo:
		return appendStruct(nil, g.deviceInfo()), 0
	}
	return nil, c.sim.refuse(syscall.EINVAL, "info query not modelled", "query", args.Query)
}

func (g *gpu) deviceInfo() *abi.AMDGPUDeviceInfo {
	m := g.model
	info := &abi.AMDGPUDeviceInfo{
		DeviceID: m.DeviceID, ChipRev: 1, ExternalRev: 1, Family: m.Family,
		NumShaderEngines: m.ArrayCount, NumShaderArraysPerEngine: 1, GPUCounterFreq: 100000,
		MaxEngineClock: 1700000, MaxMemoryClock: 1000000, CUActiveNumber: m.SIMDCount / m.SIMDPerCU,
		EnabledRBPipesMask: 0xf, NumRBPipes: uint32(bits.OnesCount(0xf)), NumHWGFXContexts: 8,
		VirtualAddressOffset: infoVAOffset, VirtualAddressMax: vaHoleStart, VirtualAddressAlignment: pageSize,
		PTEFragmentSize: 2 << 20, GARTPageSize: pageSize, VRAMType: 6, VRAMBitWidth: 4096,
		WaveFrontSize: m.WaveFrontSize, NumCUPerSH: m.CUPerArray,
		HighVAOffset: infoHighStart, HighVAMax: 1<<64 - 1<<21,
	}
	for i := range info.CUBitmap {
		info.CUBitmap[i][0] = 1<<m.CUPerArray - 1
	}
	return info
}
