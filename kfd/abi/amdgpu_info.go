package abi

// Queries of [AMDGPUIocInfo] (AMDGPU_INFO_*).
const (
	AMDGPUInfoAccelWorking = 0x00
	AMDGPUInfoHWIPInfo     = 0x02
	AMDGPUInfoHWIPCount    = 0x03
	AMDGPUInfoFWVersion    = 0x0e
	AMDGPUInfoVRAMUsage    = 0x10
	AMDGPUInfoGTTUsage     = 0x11
	AMDGPUInfoVRAMGTT      = 0x14
	AMDGPUInfoReadMMRReg   = 0x15
	AMDGPUInfoDevInfo      = 0x16
	AMDGPUInfoMemory       = 0x19
)

// GPU families (AMDGPU_FAMILY_*); those after YC are newer than Linux 6.1.
const (
	AMDGPUFamilySI       = 110
	AMDGPUFamilyCI       = 120
	AMDGPUFamilyKV       = 125
	AMDGPUFamilyVI       = 130
	AMDGPUFamilyCZ       = 135
	AMDGPUFamilyAI       = 141
	AMDGPUFamilyRV       = 142
	AMDGPUFamilyNV       = 143
	AMDGPUFamilyVGH      = 144
	AMDGPUFamilyGC11_0_0 = 145
	AMDGPUFamilyYC       = 146
	AMDGPUFamilyGC11_0_1 = 148
	AMDGPUFamilyGC10_3_6 = 149
	AMDGPUFamilyGC11_5_0 = 150
	AMDGPUFamilyGC10_3_7 = 151
	AMDGPUFamilyGC12_0_0 = 152
)

// AMDGPUInfoArgs belongs to [AMDGPUIocInfo]. The union of the queries'
// parameters is given as its read_mmr_reg member; query_hw_ip has its type and
// instance in the first two words, query_fw its type, instance and index in
// the first three.
type AMDGPUInfoArgs struct {
	ReturnPointer uint64 `c:"return_pointer"`
	ReturnSize    uint32 `c:"return_size"`
	Query         uint32 `c:"query"`
	DwordOffset   uint32 `c:"read_mmr_reg.dword_offset"`
	Count         uint32 `c:"read_mmr_reg.count"`
	Instance      uint32 `c:"read_mmr_reg.instance"`
	Flags         uint32 `c:"read_mmr_reg.flags"`
}

// AMDGPUInfoHWIP is the result of AMDGPUInfoHWIPInfo. Newer headers use the
// pad for the discovery version.
type AMDGPUInfoHWIP struct {
	VersionMajor      uint32 `c:"hw_ip_version_major"`
	VersionMinor      uint32 `c:"hw_ip_version_minor"`
	CapabilitiesFlags uint64 `c:"capabilities_flags"`
	IBStartAlignment  uint32 `c:"ib_start_alignment"`
	IBSizeAlignment   uint32 `c:"ib_size_alignment"`
	AvailableRings    uint32 `c:"available_rings"` // bit mask
	Pad               uint32
}

// AMDGPUInfoFirmware is the result of AMDGPUInfoFWVersion.
type AMDGPUInfoFirmware struct {
	Ver     uint32 `c:"ver"`
	Feature uint32 `c:"feature"`
}

// AMDGPUInfoVRAMGTTSizes is the result of AMDGPUInfoVRAMGTT, in bytes.
type AMDGPUInfoVRAMGTTSizes struct {
	VRAMSize              uint64 `c:"vram_size"`
	VRAMCPUAccessibleSize uint64 `c:"vram_cpu_accessible_size"`
	GTTSize               uint64 `c:"gtt_size"`
}

// AMDGPUHeapInfo describes one heap, in bytes.
type AMDGPUHeapInfo struct {
	TotalHeapSize  uint64 `c:"total_heap_size"`
	UsableHeapSize uint64 `c:"usable_heap_size"`
	HeapUsage      uint64 `c:"heap_usage"`
	MaxAllocation  uint64 `c:"max_allocation"`
}

// AMDGPUMemoryInfo is the result of AMDGPUInfoMemory.
type AMDGPUMemoryInfo struct {
	VRAM              AMDGPUHeapInfo `c:"vram"`
	CPUAccessibleVRAM AMDGPUHeapInfo `c:"cpu_accessible_vram"`
	GTT               AMDGPUHeapInfo `c:"gtt"`
}

// AMDGPUDeviceInfo is the result of AMDGPUInfoDevInfo. Newer headers append to
// it and use two of the pads.
type AMDGPUDeviceInfo struct {
	DeviceID                 uint32       `c:"device_id"`
	ChipRev                  uint32       `c:"chip_rev"`
	ExternalRev              uint32       `c:"external_rev"`
	PCIRev                   uint32       `c:"pci_rev"`
	Family                   uint32       `c:"family"` // AMDGPUFamily*
	NumShaderEngines         uint32       `c:"num_shader_engines"`
	NumShaderArraysPerEngine uint32       `c:"num_shader_arrays_per_engine"`
	GPUCounterFreq           uint32       `c:"gpu_counter_freq"` // kHz
	MaxEngineClock           uint64       `c:"max_engine_clock"`
	MaxMemoryClock           uint64       `c:"max_memory_clock"`
	CUActiveNumber           uint32       `c:"cu_active_number"`
	CUAOMask                 uint32       `c:"cu_ao_mask"`
	CUBitmap                 [4][4]uint32 `c:"cu_bitmap"`
	EnabledRBPipesMask       uint32       `c:"enabled_rb_pipes_mask"`
	NumRBPipes               uint32       `c:"num_rb_pipes"`
	NumHWGFXContexts         uint32       `c:"num_hw_gfx_contexts"`
	Pad                      uint32
	IDsFlags                 uint64 `c:"ids_flags"`
	VirtualAddressOffset     uint64 `c:"virtual_address_offset"`
	VirtualAddressMax        uint64 `c:"virtual_address_max"`
	VirtualAddressAlignment  uint32 `c:"virtual_address_alignment"`
	PTEFragmentSize          uint32 `c:"pte_fragment_size"`
	GARTPageSize             uint32 `c:"gart_page_size"`
	CERAMSize                uint32 `c:"ce_ram_size"`
	VRAMType                 uint32 `c:"vram_type"`
	VRAMBitWidth             uint32 `c:"vram_bit_width"`
	VCEHarvestConfig         uint32 `c:"vce_harvest_config"`
	GCDoubleOffchipLDSBuf    uint32 `c:"gc_double_offchip_lds_buf"`
	PrimBufGPUAddr           uint64 `c:"prim_buf_gpu_addr"`
	PosBufGPUAddr            uint64 `c:"pos_buf_gpu_addr"`
	CntlSBBufGPUAddr         uint64 `c:"cntl_sb_buf_gpu_addr"`
	ParamBufGPUAddr          uint64 `c:"param_buf_gpu_addr"`
	PrimBufSize              uint32 `c:"prim_buf_size"`
	PosBufSize               uint32 `c:"pos_buf_size"`
	CntlSBBufSize            uint32 `c:"cntl_sb_buf_size"`
	ParamBufSize             uint32 `c:"param_buf_size"`
	WaveFrontSize            uint32 `c:"wave_front_size"`
	NumShaderVisibleVGPRs    uint32 `c:"num_shader_visible_vgprs"`
	NumCUPerSH               uint32 `c:"num_cu_per_sh"`
	NumTCCBlocks             uint32 `c:"num_tcc_blocks"`
	GSVGTTableDepth          uint32 `c:"gs_vgt_table_depth"`
	GSPrimBufferDepth        uint32 `c:"gs_prim_buffer_depth"`
	MaxGSWavesPerVGT         uint32 `c:"max_gs_waves_per_vgt"`
	Pad1                     uint32
	CUAOBitmap               [4][4]uint32 `c:"cu_ao_bitmap"`
	HighVAOffset             uint64       `c:"high_va_offset"`
	HighVAMax                uint64       `c:"high_va_max"`
	PASCTileSteeringOverride uint32       `c:"pa_sc_tile_steering_override"`
	Pad2                     uint32
	TCCDisabledMask          uint64 `c:"tcc_disabled_mask"`
}
