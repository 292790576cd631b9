package abi

// requestNames is keyed by type and number, as [Request.Same] compares.
var requestNames = func() map[Request]string {
	m := make(map[Request]string, len(namedRequests))
	for r, name := range namedRequests {
		m[r&0xffff] = name
	}
	return m
}()

var namedRequests = map[Request]string{
	KFDIocGetVersion:             "AMDKFD_IOC_GET_VERSION",
	KFDIocCreateQueue:            "AMDKFD_IOC_CREATE_QUEUE",
	KFDIocDestroyQueue:           "AMDKFD_IOC_DESTROY_QUEUE",
	KFDIocSetMemoryPolicy:        "AMDKFD_IOC_SET_MEMORY_POLICY",
	KFDIocGetClockCounters:       "AMDKFD_IOC_GET_CLOCK_COUNTERS",
	KFDIocUpdateQueue:            "AMDKFD_IOC_UPDATE_QUEUE",
	KFDIocCreateEvent:            "AMDKFD_IOC_CREATE_EVENT",
	KFDIocDestroyEvent:           "AMDKFD_IOC_DESTROY_EVENT",
	KFDIocSetEvent:               "AMDKFD_IOC_SET_EVENT",
	KFDIocResetEvent:             "AMDKFD_IOC_RESET_EVENT",
	KFDIocWaitEvents:             "AMDKFD_IOC_WAIT_EVENTS",
	KFDIocSetScratchBackingVA:    "AMDKFD_IOC_SET_SCRATCH_BACKING_VA",
	KFDIocGetTileConfig:          "AMDKFD_IOC_GET_TILE_CONFIG",
	KFDIocSetTrapHandler:         "AMDKFD_IOC_SET_TRAP_HANDLER",
	KFDIocGetProcessAperturesNew: "AMDKFD_IOC_GET_PROCESS_APERTURES_NEW",
	KFDIocAcquireVM:              "AMDKFD_IOC_ACQUIRE_VM",
	KFDIocAllocMemory:            "AMDKFD_IOC_ALLOC_MEMORY_OF_GPU",
	KFDIocFreeMemory:             "AMDKFD_IOC_FREE_MEMORY_OF_GPU",
	KFDIocMapMemory:              "AMDKFD_IOC_MAP_MEMORY_TO_GPU",
	KFDIocUnmapMemory:            "AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU",
	KFDIocGetDmabufInfo:          "AMDKFD_IOC_GET_DMABUF_INFO",
	KFDIocImportDmabuf:           "AMDKFD_IOC_IMPORT_DMABUF",
	KFDIocSVM:                    "AMDKFD_IOC_SVM",
	KFDIocSetXNACKMode:           "AMDKFD_IOC_SET_XNACK_MODE",
	KFDIocCRIUOp:                 "AMDKFD_IOC_CRIU_OP",
	KFDIocAvailableMemory:        "AMDKFD_IOC_AVAILABLE_MEMORY",
	KFDIocExportDmabuf:           "AMDKFD_IOC_EXPORT_DMABUF",
	KFDIocRuntimeEnable:          "AMDKFD_IOC_RUNTIME_ENABLE",

	DRMIocVersion:         "DRM_IOCTL_VERSION",
	DRMIocGEMClose:        "DRM_IOCTL_GEM_CLOSE",
	DRMIocGetCap:          "DRM_IOCTL_GET_CAP",
	DRMIocPrimeHandleToFD: "DRM_IOCTL_PRIME_HANDLE_TO_FD",
	DRMIocPrimeFDToHandle: "DRM_IOCTL_PRIME_FD_TO_HANDLE",
	DRMIocGEMChangeHandle: "DRM_IOCTL_GEM_CHANGE_HANDLE",

	AMDGPUIocGEMCreate:      "DRM_IOCTL_AMDGPU_GEM_CREATE",
	AMDGPUIocGEMMmap:        "DRM_IOCTL_AMDGPU_GEM_MMAP",
	AMDGPUIocCtx:            "DRM_IOCTL_AMDGPU_CTX",
	AMDGPUIocBOList:         "DRM_IOCTL_AMDGPU_BO_LIST",
	AMDGPUIocCS:             "DRM_IOCTL_AMDGPU_CS",
	AMDGPUIocInfo:           "DRM_IOCTL_AMDGPU_INFO",
	AMDGPUIocGEMWaitIdle:    "DRM_IOCTL_AMDGPU_GEM_WAIT_IDLE",
	AMDGPUIocGEMVA:          "DRM_IOCTL_AMDGPU_GEM_VA",
	AMDGPUIocWaitCS:         "DRM_IOCTL_AMDGPU_WAIT_CS",
	AMDGPUIocGEMOp:          "DRM_IOCTL_AMDGPU_GEM_OP",
	AMDGPUIocGEMUserptr:     "DRM_IOCTL_AMDGPU_GEM_USERPTR",
	AMDGPUIocGEMListHandles: "DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES",
}
