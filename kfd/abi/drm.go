package abi

// Numbers of DRM character devices.
const (
	DRMMajor         = 226
	DRMFirstRender   = 128
	DRMLastRender    = 255
	DRMVersionMajor  = 3 // of the amdgpu driver
	PCIVendorAMD     = 0x1002
	DRMInvalidHandle = 0xffffffff // "no GEM handle" in the plugin's images
	AMDGPUPageSize   = 4096
)

// Requests of any DRM device.
const (
	DRMIocVersion         Request = 0xc0406400
	DRMIocGEMClose        Request = 0x40086409
	DRMIocGetCap          Request = 0xc010640c
	DRMIocPrimeHandleToFD Request = 0xc00c642d
	DRMIocPrimeFDToHandle Request = 0xc00c642e
	DRMIocGEMChangeHandle Request = 0xc00864d2 // Linux 6.18
)

// Requests of an amdgpu device: numbers from DRM_COMMAND_BASE (0x40).
const (
	AMDGPUIocGEMCreate      Request = 0xc0206440
	AMDGPUIocGEMMmap        Request = 0xc0086441
	AMDGPUIocCtx            Request = 0xc0106442
	AMDGPUIocBOList         Request = 0xc0186443
	AMDGPUIocCS             Request = 0xc0186444
	AMDGPUIocInfo           Request = 0x40206445
	AMDGPUIocGEMWaitIdle    Request = 0xc0106447
	AMDGPUIocGEMVA          Request = 0x40286448
	AMDGPUIocWaitCS         Request = 0xc0206449
	AMDGPUIocGEMOp          Request = 0xc0106450
	AMDGPUIocGEMOpMapping   Request = 0xc0186450 // Linux 6.18, the same with AMDGPUGEMOpMappingArgs
	AMDGPUIocGEMUserptr     Request = 0xc0186451
	AMDGPUIocGEMListHandles Request = 0xc0106459 // Linux 6.18
)

// Flags of [DRMIocPrimeHandleToFD]: the open flags of the new descriptor.
const (
	DRMCloexec = 0x80000
	DRMRdwr    = 0x2
)

// DRMCapPrime asks [DRMIocGetCap] for the kinds of PRIME sharing.
const (
	DRMCapPrime    = 5
	DRMPrimeImport = 1
	DRMPrimeExport = 2
)

// DRMVersionArgs belongs to [DRMIocVersion].
type DRMVersionArgs struct {
	Major      int32 `c:"version_major"`
	Minor      int32 `c:"version_minor"`
	Patchlevel int32 `c:"version_patchlevel"`
	Pad        uint32
	NameLen    uint64 `c:"name_len"`
	Name       uint64 `c:"name"`
	DateLen    uint64 `c:"date_len"`
	Date       uint64 `c:"date"`
	DescLen    uint64 `c:"desc_len"`
	Desc       uint64 `c:"desc"`
}

// DRMGEMCloseArgs belongs to [DRMIocGEMClose].
type DRMGEMCloseArgs struct {
	Handle uint32 `c:"handle"`
	Pad    uint32
}

// DRMGetCapArgs belongs to [DRMIocGetCap].
type DRMGetCapArgs struct {
	Capability uint64 `c:"capability"`
	Value      uint64 `c:"value"`
}

// DRMPrimeArgs belongs to [DRMIocPrimeHandleToFD] and [DRMIocPrimeFDToHandle].
type DRMPrimeArgs struct {
	Handle uint32 `c:"handle"`
	Flags  uint32 `c:"flags"`
	FD     int32  `c:"fd"`
}

// DRMGEMChangeHandleArgs belongs to [DRMIocGEMChangeHandle].
type DRMGEMChangeHandleArgs struct {
	Handle    uint32 `c:"handle"`
	NewHandle uint32 `c:"new_handle"`
}
