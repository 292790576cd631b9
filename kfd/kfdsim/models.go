package kfdsim

import "github.com/gpucr/gpucr-fs/kfd/abi"

// Model holds the properties of a kind of GPU: what its topology node says and
// which SDMA packets it understands.
type Model struct {
	DeviceID            uint32
	Family              uint32 // abi.AMDGPUFamily*
	SDMA                SDMAVersion
	GFXTarget           uint32 // gfx_target_version, e.g. 90006 for gfx906
	SIMDCount           uint32
	ArrayCount          uint32
	CUPerArray          uint32
	SIMDPerCU           uint32
	MaxWavesPerSIMD     uint32
	WaveFrontSize       uint32
	LDSKiB              uint32
	NumGWS              uint32
	Caches              uint32
	SDMAEngines         uint32
	XGMIEngines         uint32
	QueuesPerEngine     uint32
	CPQueues            uint32
	XCCs                uint32 // accelerator dies, which partitions share out; 0 is 1
	Capability          uint32
	FirmwareVersion     uint32
	SDMAFirmwareVersion uint32
}

// Models are the kinds of GPU that can be simulated: one for each generation
// of SDMA packets that the ROCm driver still serves, and the two data center
// parts of generation 4.
var Models = map[string]Model{
	"polaris": {
		DeviceID: 0x67df, Family: abi.AMDGPUFamilyVI, SDMA: SDMAv3, GFXTarget: 80003,
		SIMDCount: 144, ArrayCount: 4, CUPerArray: 9, SIMDPerCU: 4, MaxWavesPerSIMD: 10,
		WaveFrontSize: 64, LDSKiB: 64, NumGWS: 64, Caches: 52, SDMAEngines: 2, QueuesPerEngine: 2,
		CPQueues: 24, Capability: 0x00005080, FirmwareVersion: 730, SDMAFirmwareVersion: 58,
	},
	"mi50": {
		DeviceID: 0x66a1, Family: abi.AMDGPUFamilyAI, SDMA: SDMAv4, GFXTarget: 90006,
		SIMDCount: 240, ArrayCount: 4, CUPerArray: 16, SIMDPerCU: 4, MaxWavesPerSIMD: 10,
		WaveFrontSize: 64, LDSKiB: 64, NumGWS: 64, Caches: 112, SDMAEngines: 2, QueuesPerEngine: 8,
		CPQueues: 24, Capability: 0x00017280, FirmwareVersion: 440, SDMAFirmwareVersion: 145,
	},
	"mi210": {
		DeviceID: 0x740f, Family: abi.AMDGPUFamilyAI, SDMA: SDMAv4, GFXTarget: 90010,
		SIMDCount: 416, ArrayCount: 8, CUPerArray: 16, SIMDPerCU: 4, MaxWavesPerSIMD: 8,
		WaveFrontSize: 64, LDSKiB: 64, NumGWS: 64, Caches: 206, SDMAEngines: 2, XGMIEngines: 3,
		QueuesPerEngine: 8, CPQueues: 24, Capability: 0x08017280, FirmwareVersion: 78, SDMAFirmwareVersion: 8,
	},
	"mi300x": {
		DeviceID: 0x74a1, Family: abi.AMDGPUFamilyAI, SDMA: SDMAv4, GFXTarget: 90402,
		SIMDCount: 1216, ArrayCount: 32, CUPerArray: 10, SIMDPerCU: 4, MaxWavesPerSIMD: 8,
		WaveFrontSize: 64, LDSKiB: 64, NumGWS: 64, Caches: 498, SDMAEngines: 2, XGMIEngines: 14, XCCs: 8,
		QueuesPerEngine: 8, CPQueues: 24, Capability: 0x38017280, FirmwareVersion: 169, SDMAFirmwareVersion: 22,
	},
	"navi21": {
		DeviceID: 0x73bf, Family: abi.AMDGPUFamilyNV, SDMA: SDMAv5, GFXTarget: 100300,
		SIMDCount: 160, ArrayCount: 8, CUPerArray: 10, SIMDPerCU: 2, MaxWavesPerSIMD: 16,
		WaveFrontSize: 32, LDSKiB: 64, NumGWS: 64, Caches: 206, SDMAEngines: 4, QueuesPerEngine: 8,
		CPQueues: 8, Capability: 0x00014280, FirmwareVersion: 115, SDMAFirmwareVersion: 83,
	},
	"navi31": {
		DeviceID: 0x744c, Family: abi.AMDGPUFamilyGC11_0_0, SDMA: SDMAv6, GFXTarget: 110000,
		SIMDCount: 192, ArrayCount: 12, CUPerArray: 8, SIMDPerCU: 2, MaxWavesPerSIMD: 16,
		WaveFrontSize: 32, LDSKiB: 64, NumGWS: 64, Caches: 206, SDMAEngines: 2, QueuesPerEngine: 6,
		CPQueues: 8, Capability: 0x00014280, FirmwareVersion: 550, SDMAFirmwareVersion: 21,
	},
	"navi48": {
		DeviceID: 0x7550, Family: abi.AMDGPUFamilyGC12_0_0, SDMA: SDMAv7, GFXTarget: 120001,
		SIMDCount: 128, ArrayCount: 8, CUPerArray: 8, SIMDPerCU: 2, MaxWavesPerSIMD: 16,
		WaveFrontSize: 32, LDSKiB: 64, NumGWS: 64, Caches: 142, SDMAEngines: 2, QueuesPerEngine: 8,
		CPQueues: 8, Capability: 0x00014280, FirmwareVersion: 80, SDMAFirmwareVersion: 866,
	},
}

// part is the model of one of n partitions of a device: its share of the dies and of what they have.
func (m Model) part(n uint32) Model {
	if n == 1 {
		return m
	}
	m.SIMDCount, m.ArrayCount, m.Caches, m.XCCs = m.SIMDCount/n, m.ArrayCount/n, m.Caches/n, m.XCCs/n
	engines := (m.SDMAEngines + m.XGMIEngines) / n
	m.SDMAEngines = min(engines, m.SDMAEngines)
	m.XGMIEngines = engines - m.SDMAEngines
	return m
}

// model is what the GPU is like.
func (g *GPU) model() Model { return Models[g.Model].part(g.Partitions) }

// saveArea gives the sizes, for each die, of what the waves of a compute queue are saved
// to: the control stack, the area with it, and what debuggers get behind it
// (kfd_queue_ctx_save_restore_size).
func (g *gpu) saveArea() (stack, area, debug uint32) {
	const (
		header, stackOfWave, debugOfWave = 40, 8, 32
		sgprs, lds, hardware             = 0x4000, 0x10000, 0x1000
	)
	m := g.model
	units := m.SIMDCount / m.SIMDPerCU / g.xccs()
	waves, bytesOfWave, vgprs := units*32, uint32(stackOfWave+4), uint32(0x40000)
	if m.GFXTarget < 100100 {
		waves, bytesOfWave = min(units*40, m.ArrayCount*512), stackOfWave
	}
	switch m.GFXTarget {
	case 90010, 90402:
		vgprs = 0x80000
	case 110000:
		vgprs = 0x60000
	}
	stack = uint32(pageAlign(uint64(header + waves*bytesOfWave + 8)))
	if m.GFXTarget/10000 == 10 {
		stack = min(stack, 0x7000)
	}
	area = stack + uint32(pageAlign(uint64(units*(vgprs+sgprs+lds+hardware))))
	return stack, area, (waves*debugOfWave + 63) &^ 63
}
