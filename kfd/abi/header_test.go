package abi

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const headerHint = "hint: apt-get install gcc linux-libc-dev libdrm-dev"

// cStruct pairs a structure of this package with the C type it mirrors.
type cStruct struct {
	c     string // C type
	v     any
	size  uintptr // what the Go structure must be, whatever the headers say
	guard string  // macro that the header must have to know the type
	grows bool    // newer headers append members: C may be larger
}

// key names the pair in the C program's output: one C type may have two
// structures here.
func (s cStruct) key() string { return fmt.Sprintf("%s %T", s.c, s.v) }

var cStructs = []cStruct{
	{c: "struct kfd_ioctl_get_version_args", v: KFDGetVersionArgs{}, size: 8},
	{c: "struct kfd_ioctl_create_queue_args", v: KFDCreateQueueArgs{}, size: 88, grows: true},
	{c: "struct kfd_ioctl_destroy_queue_args", v: KFDDestroyQueueArgs{}, size: 8},
	{c: "struct kfd_ioctl_update_queue_args", v: KFDUpdateQueueArgs{}, size: 24},
	{c: "struct kfd_ioctl_set_memory_policy_args", v: KFDSetMemoryPolicyArgs{}, size: 32},
	{c: "struct kfd_ioctl_get_clock_counters_args", v: KFDGetClockCountersArgs{}, size: 40},
	{c: "struct kfd_process_device_apertures", v: KFDProcessDeviceApertures{}, size: 56},
	{c: "struct kfd_ioctl_get_process_apertures_new_args", v: KFDGetProcessAperturesNewArgs{}, size: 16},
	{c: "struct kfd_ioctl_acquire_vm_args", v: KFDAcquireVMArgs{}, size: 8},
	{c: "struct kfd_ioctl_alloc_memory_of_gpu_args", v: KFDAllocMemoryArgs{}, size: 40},
	{c: "struct kfd_ioctl_free_memory_of_gpu_args", v: KFDFreeMemoryArgs{}, size: 8},
	{c: "struct kfd_ioctl_map_memory_to_gpu_args", v: KFDMapMemoryArgs{}, size: 24},
	{c: "struct kfd_ioctl_unmap_memory_from_gpu_args", v: KFDMapMemoryArgs{}, size: 24},
	{c: "struct kfd_ioctl_get_dmabuf_info_args", v: KFDGetDmabufInfoArgs{}, size: 32},
	{c: "struct kfd_ioctl_import_dmabuf_args", v: KFDImportDmabufArgs{}, size: 24},
	{c: "struct kfd_ioctl_export_dmabuf_args", v: KFDExportDmabufArgs{}, size: 16, guard: "AMDKFD_IOC_EXPORT_DMABUF"},
	{c: "struct kfd_ioctl_set_scratch_backing_va_args", v: KFDSetScratchBackingVAArgs{}, size: 16},
	{c: "struct kfd_ioctl_get_tile_config_args", v: KFDGetTileConfigArgs{}, size: 40},
	{c: "struct kfd_ioctl_set_trap_handler_args", v: KFDSetTrapHandlerArgs{}, size: 24},
	{c: "struct kfd_ioctl_get_available_memory_args", v: KFDAvailableMemoryArgs{}, size: 16},
	{c: "struct kfd_ioctl_set_xnack_mode_args", v: KFDSetXNACKModeArgs{}, size: 4},
	{c: "struct kfd_ioctl_runtime_enable_args", v: KFDRuntimeEnableArgs{}, size: 16,
		guard: "AMDKFD_IOC_RUNTIME_ENABLE"},
	{c: "struct kfd_ioctl_svm_args", v: KFDSVMArgs{}, size: 24},
	{c: "struct kfd_ioctl_svm_attribute", v: KFDSVMAttribute{}, size: 8},
	{c: "struct kfd_ioctl_create_event_args", v: KFDCreateEventArgs{}, size: 32},
	{c: "struct kfd_ioctl_destroy_event_args", v: KFDEventArgs{}, size: 8},
	{c: "struct kfd_ioctl_set_event_args", v: KFDEventArgs{}, size: 8},
	{c: "struct kfd_ioctl_reset_event_args", v: KFDEventArgs{}, size: 8},
	{c: "struct kfd_ioctl_wait_events_args", v: KFDWaitEventsArgs{}, size: 24},
	{c: "struct kfd_hsa_memory_exception_data", v: KFDMemoryException{}, size: 32},
	{c: "struct kfd_event_data", v: KFDEventData{}, size: 48},
	{c: "struct kfd_ioctl_criu_args", v: KFDCRIUArgs{}, size: 56},
	{c: "struct kfd_criu_device_bucket", v: KFDCRIUDeviceBucket{}, size: 16},
	{c: "struct kfd_criu_bo_bucket", v: KFDCRIUBoBucket{}, size: 48},

	{c: "struct drm_version", v: DRMVersionArgs{}, size: 64},
	{c: "struct drm_gem_close", v: DRMGEMCloseArgs{}, size: 8},
	{c: "struct drm_get_cap", v: DRMGetCapArgs{}, size: 16},
	{c: "struct drm_prime_handle", v: DRMPrimeArgs{}, size: 12},
	{c: "struct drm_gem_change_handle", v: DRMGEMChangeHandleArgs{}, size: 8, guard: "DRM_IOCTL_GEM_CHANGE_HANDLE"},

	{c: "struct drm_amdgpu_gem_create_in", v: AMDGPUGEMCreateIn{}, size: 32},
	{c: "struct drm_amdgpu_gem_create_out", v: AMDGPUGEMCreateOut{}, size: 8},
	{c: "struct drm_amdgpu_gem_mmap_in", v: AMDGPUGEMMmapIn{}, size: 8},
	{c: "struct drm_amdgpu_gem_mmap_out", v: AMDGPUGEMMmapOut{}, size: 8},
	{c: "struct drm_amdgpu_gem_userptr", v: AMDGPUGEMUserptrArgs{}, size: 24},
	{c: "struct drm_amdgpu_gem_va", v: AMDGPUGEMVAArgs{}, size: 40, grows: true},
	{c: "struct drm_amdgpu_gem_wait_idle_in", v: AMDGPUGEMWaitIdleIn{}, size: 16},
	{c: "struct drm_amdgpu_gem_wait_idle_out", v: AMDGPUGEMWaitIdleOut{}, size: 8},
	{c: "struct drm_amdgpu_gem_op", v: AMDGPUGEMOpArgs{}, size: 16, grows: true},
	{c: "struct drm_amdgpu_gem_op", v: AMDGPUGEMOpMappingArgs{}, size: 24, guard: "AMDGPU_GEM_OP_GET_MAPPING_INFO"},
	{c: "struct drm_amdgpu_gem_vm_entry", v: AMDGPUGEMVMEntry{}, size: 32, guard: "AMDGPU_GEM_OP_GET_MAPPING_INFO"},
	{c: "struct drm_amdgpu_gem_list_handles", v: AMDGPUGEMListHandlesArgs{}, size: 16,
		guard: "DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES"},
	{c: "struct drm_amdgpu_gem_list_handles_entry", v: AMDGPUGEMListHandlesEntry{}, size: 40,
		guard: "DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES"},
	{c: "struct drm_amdgpu_ctx_in", v: AMDGPUCtxIn{}, size: 16},
	{c: "union drm_amdgpu_ctx_out", v: AMDGPUCtxAllocOut{}, size: 8, grows: true},
	{c: "union drm_amdgpu_ctx_out", v: AMDGPUCtxStateOut{}, size: 16},
	{c: "struct drm_amdgpu_bo_list_in", v: AMDGPUBOListIn{}, size: 24},
	{c: "struct drm_amdgpu_bo_list_out", v: AMDGPUBOListOut{}, size: 8},
	{c: "struct drm_amdgpu_bo_list_entry", v: AMDGPUBOListEntry{}, size: 8},
	{c: "struct drm_amdgpu_cs_in", v: AMDGPUCSIn{}, size: 24},
	{c: "struct drm_amdgpu_cs_out", v: AMDGPUCSOut{}, size: 8},
	{c: "struct drm_amdgpu_cs_chunk", v: AMDGPUCSChunk{}, size: 16},
	{c: "struct drm_amdgpu_cs_chunk_ib", v: AMDGPUCSChunkIB{}, size: 32},
	{c: "struct drm_amdgpu_wait_cs_in", v: AMDGPUWaitCSIn{}, size: 32},
	{c: "struct drm_amdgpu_wait_cs_out", v: AMDGPUWaitCSOut{}, size: 8},
	{c: "struct drm_amdgpu_info", v: AMDGPUInfoArgs{}, size: 32},
	{c: "struct drm_amdgpu_info_hw_ip", v: AMDGPUInfoHWIP{}, size: 32, grows: true},
	{c: "struct drm_amdgpu_info_firmware", v: AMDGPUInfoFirmware{}, size: 8},
	{c: "struct drm_amdgpu_info_vram_gtt", v: AMDGPUInfoVRAMGTTSizes{}, size: 24},
	{c: "struct drm_amdgpu_heap_info", v: AMDGPUHeapInfo{}, size: 32},
	{c: "struct drm_amdgpu_memory_info", v: AMDGPUMemoryInfo{}, size: 96},
	{c: "struct drm_amdgpu_info_device", v: AMDGPUDeviceInfo{}, size: 368, grows: true},

	{c: "union drm_amdgpu_gem_create", v: struct{ AMDGPUGEMCreateIn }{}, size: 32},
	{c: "union drm_amdgpu_gem_mmap", v: struct{ AMDGPUGEMMmapIn }{}, size: 8},
	{c: "union drm_amdgpu_gem_wait_idle", v: struct{ AMDGPUGEMWaitIdleIn }{}, size: 16},
	{c: "union drm_amdgpu_ctx", v: struct{ AMDGPUCtxIn }{}, size: 16},
	{c: "union drm_amdgpu_bo_list", v: struct{ AMDGPUBOListIn }{}, size: 24},
	{c: "union drm_amdgpu_cs", v: struct{ AMDGPUCSIn }{}, size: 24},
	{c: "union drm_amdgpu_wait_cs", v: struct{ AMDGPUWaitCSIn }{}, size: 32},
}

// growingRequests are those whose argument is larger in newer headers.
var growingRequests = map[Request]bool{
	KFDIocCreateQueue: true,
	AMDGPUIocGEMOp:    true,
	AMDGPUIocGEMVA:    true,
}

// newRequests are unknown to Linux 6.1's headers.
var newRequests = map[Request]bool{
	KFDIocExportDmabuf:      true,
	KFDIocRuntimeEnable:     true,
	DRMIocGEMChangeHandle:   true,
	AMDGPUIocGEMListHandles: true,
}

var cConsts = map[string]uint64{
	"KFD_IOCTL_MAJOR_VERSION":                 KFDMajorVersion,
	"KFD_INVALID_FD":                          KFDInvalidFD,
	"KFD_SIGNAL_EVENT_LIMIT":                  KFDSignalEventMax,
	"KFD_IOC_ALLOC_MEM_FLAGS_VRAM":            KFDMemVRAM,
	"KFD_IOC_ALLOC_MEM_FLAGS_GTT":             KFDMemGTT,
	"KFD_IOC_ALLOC_MEM_FLAGS_USERPTR":         KFDMemUserptr,
	"KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL":        KFDMemDoorbell,
	"KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP":      KFDMemMMIORemap,
	"KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED":        KFDMemUncached,
	"KFD_IOC_ALLOC_MEM_FLAGS_COHERENT":        KFDMemCoherent,
	"KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM":   KFDMemAQLQueueMem,
	"KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE":   KFDMemNoSubstitute,
	"KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC":          KFDMemPublic,
	"KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE":      KFDMemExecutable,
	"(__u32)KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE": KFDMemWritable,
	"KFD_IOC_QUEUE_TYPE_COMPUTE":              KFDQueueCompute,
	"KFD_IOC_QUEUE_TYPE_SDMA":                 KFDQueueSDMA,
	"KFD_IOC_QUEUE_TYPE_COMPUTE_AQL":          KFDQueueComputeAQL,
	"KFD_IOC_QUEUE_TYPE_SDMA_XGMI":            KFDQueueSDMAXGMI,
	"KFD_MAX_QUEUE_PERCENTAGE":                KFDMaxQueuePercentage,
	"KFD_MAX_QUEUE_PRIORITY":                  KFDMaxQueuePriority,
	"KFD_MIN_QUEUE_RING_SIZE":                 KFDMinQueueRingSize,
	"KFD_IOC_EVENT_SIGNAL":                    KFDEventSignal,
	"KFD_IOC_EVENT_HW_EXCEPTION":              KFDEventHWException,
	"KFD_IOC_EVENT_MEMORY":                    KFDEventMemory,
	"KFD_IOC_WAIT_RESULT_COMPLETE":            KFDWaitComplete,
	"KFD_IOC_WAIT_RESULT_TIMEOUT":             KFDWaitTimeout,
	"KFD_IOC_WAIT_RESULT_FAIL":                KFDWaitFail,
	"KFD_CRIU_OP_PROCESS_INFO":                KFDCRIUProcessInfo,
	"KFD_CRIU_OP_CHECKPOINT":                  KFDCRIUCheckpoint,
	"KFD_CRIU_OP_UNPAUSE":                     KFDCRIUUnpause,
	"KFD_CRIU_OP_RESTORE":                     KFDCRIURestore,
	"KFD_CRIU_OP_RESUME":                      KFDCRIUResume,
	"AMDKFD_IOCTL_BASE":                       TypeKFD,
	"DRM_IOCTL_BASE":                          TypeDRM,
	"O_CLOEXEC":                               DRMCloexec,
	"O_RDWR":                                  DRMRdwr,
	"DRM_CAP_PRIME":                           DRMCapPrime,
	"DRM_PRIME_CAP_IMPORT":                    DRMPrimeImport,
	"DRM_PRIME_CAP_EXPORT":                    DRMPrimeExport,
	"AMDGPU_GEM_DOMAIN_CPU":                   AMDGPUDomainCPU,
	"AMDGPU_GEM_DOMAIN_GTT":                   AMDGPUDomainGTT,
	"AMDGPU_GEM_DOMAIN_VRAM":                  AMDGPUDomainVRAM,
	"AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED":   AMDGPUCreateCPUAccessRequired,
	"AMDGPU_GEM_CREATE_NO_CPU_ACCESS":         AMDGPUCreateNoCPUAccess,
	"AMDGPU_GEM_CREATE_CPU_GTT_USWC":          AMDGPUCreateCPUGTTUSWC,
	"AMDGPU_GEM_CREATE_VRAM_CLEARED":          AMDGPUCreateVRAMCleared,
	"AMDGPU_GEM_CREATE_VRAM_CONTIGUOUS":       AMDGPUCreateVRAMContiguous,
	"AMDGPU_GEM_CREATE_VM_ALWAYS_VALID":       AMDGPUCreateVMAlwaysValid,
	"AMDGPU_GEM_CREATE_EXPLICIT_SYNC":         AMDGPUCreateExplicitSync,
	"AMDGPU_GEM_USERPTR_READONLY":             AMDGPUUserptrReadonly,
	"AMDGPU_GEM_USERPTR_ANONONLY":             AMDGPUUserptrAnononly,
	"AMDGPU_GEM_USERPTR_VALIDATE":             AMDGPUUserptrValidate,
	"AMDGPU_GEM_USERPTR_REGISTER":             AMDGPUUserptrRegister,
	"AMDGPU_VA_OP_MAP":                        AMDGPUVAOpMap,
	"AMDGPU_VA_OP_UNMAP":                      AMDGPUVAOpUnmap,
	"AMDGPU_VA_OP_CLEAR":                      AMDGPUVAOpClear,
	"AMDGPU_VA_OP_REPLACE":                    AMDGPUVAOpReplace,
	"AMDGPU_VM_DELAY_UPDATE":                  AMDGPUVMDelayUpdate,
	"AMDGPU_VM_PAGE_READABLE":                 AMDGPUVMPageReadable,
	"AMDGPU_VM_PAGE_WRITEABLE":                AMDGPUVMPageWriteable,
	"AMDGPU_VM_PAGE_EXECUTABLE":               AMDGPUVMPageExecutable,
	"AMDGPU_GEM_OP_GET_GEM_CREATE_INFO":       AMDGPUGEMOpGetCreateInfo,
	"AMDGPU_GEM_OP_SET_PLACEMENT":             AMDGPUGEMOpSetPlacement,
	"AMDGPU_CTX_OP_ALLOC_CTX":                 AMDGPUCtxOpAlloc,
	"AMDGPU_CTX_OP_FREE_CTX":                  AMDGPUCtxOpFree,
	"AMDGPU_CTX_OP_QUERY_STATE":               AMDGPUCtxOpQueryState,
	"AMDGPU_CTX_OP_QUERY_STATE2":              AMDGPUCtxOpQueryState2,
	"AMDGPU_BO_LIST_OP_CREATE":                AMDGPUBOListOpCreate,
	"AMDGPU_BO_LIST_OP_DESTROY":               AMDGPUBOListOpDestroy,
	"AMDGPU_BO_LIST_OP_UPDATE":                AMDGPUBOListOpUpdate,
	"AMDGPU_CHUNK_ID_IB":                      AMDGPUChunkIB,
	"AMDGPU_CHUNK_ID_FENCE":                   AMDGPUChunkFence,
	"AMDGPU_CHUNK_ID_DEPENDENCIES":            AMDGPUChunkDependencies,
	"AMDGPU_CHUNK_ID_BO_HANDLES":              AMDGPUChunkBOHandles,
	"AMDGPU_HW_IP_GFX":                        AMDGPUHWIPGFX,
	"AMDGPU_HW_IP_COMPUTE":                    AMDGPUHWIPCompute,
	"AMDGPU_HW_IP_DMA":                        AMDGPUHWIPDMA,
	"AMDGPU_INFO_ACCEL_WORKING":               AMDGPUInfoAccelWorking,
	"AMDGPU_INFO_HW_IP_INFO":                  AMDGPUInfoHWIPInfo,
	"AMDGPU_INFO_HW_IP_COUNT":                 AMDGPUInfoHWIPCount,
	"AMDGPU_INFO_FW_VERSION":                  AMDGPUInfoFWVersion,
	"AMDGPU_INFO_VRAM_USAGE":                  AMDGPUInfoVRAMUsage,
	"AMDGPU_INFO_GTT_USAGE":                   AMDGPUInfoGTTUsage,
	"AMDGPU_INFO_VRAM_GTT":                    AMDGPUInfoVRAMGTT,
	"AMDGPU_INFO_READ_MMR_REG":                AMDGPUInfoReadMMRReg,
	"AMDGPU_INFO_DEV_INFO":                    AMDGPUInfoDevInfo,
	"AMDGPU_INFO_MEMORY":                      AMDGPUInfoMemory,
	"AMDGPU_FAMILY_SI":                        AMDGPUFamilySI,
	"AMDGPU_FAMILY_CI":                        AMDGPUFamilyCI,
	"AMDGPU_FAMILY_KV":                        AMDGPUFamilyKV,
	"AMDGPU_FAMILY_VI":                        AMDGPUFamilyVI,
	"AMDGPU_FAMILY_CZ":                        AMDGPUFamilyCZ,
	"AMDGPU_FAMILY_AI":                        AMDGPUFamilyAI,
	"AMDGPU_FAMILY_RV":                        AMDGPUFamilyRV,
	"AMDGPU_FAMILY_NV":                        AMDGPUFamilyNV,
	"AMDGPU_FAMILY_VGH":                       AMDGPUFamilyVGH,
	"AMDGPU_FAMILY_YC":                        AMDGPUFamilyYC,
}

// newConsts are macros that Linux 6.1's headers lack.
var newConsts = map[string]uint64{
	"AMDGPU_FAMILY_GC_11_0_0":                AMDGPUFamilyGC11_0_0,
	"AMDGPU_FAMILY_GC_11_0_1":                AMDGPUFamilyGC11_0_1,
	"AMDGPU_FAMILY_GC_10_3_6":                AMDGPUFamilyGC10_3_6,
	"AMDGPU_FAMILY_GC_11_5_0":                AMDGPUFamilyGC11_5_0,
	"AMDGPU_FAMILY_GC_10_3_7":                AMDGPUFamilyGC10_3_7,
	"AMDGPU_FAMILY_GC_12_0_0":                AMDGPUFamilyGC12_0_0,
	"AMDGPU_GEM_OP_GET_MAPPING_INFO":         AMDGPUGEMOpGetMappingInfo,
	"AMDGPU_GEM_LIST_HANDLES_FLAG_IS_IMPORT": AMDGPUGEMListIsImport,
}

// TestMatchesKernelHeaders compiles a C program against the headers of this
// machine and compares every size, offset, request number and flag.
func TestMatchesKernelHeaders(t *testing.T) {
	c := runC(t, headerProgram())

	absent := []string{}
	check := func(key string, want uint64, guarded, atLeast bool) {
		t.Helper()
		got, ok := c[key]
		switch {
		case !ok && guarded:
			absent = append(absent, strings.TrimPrefix(key, "const "))
		case !ok:
			t.Errorf("%s: the C program did not print it", key)
		case atLeast && got < want, !atLeast && got != want:
			t.Errorf("%s: %#x in the headers, %#x here", key, got, want)
		}
	}
	for _, s := range cStructs {
		guarded := s.guard != ""
		if _, known := c["sizeof "+s.key()]; guarded && !known {
			absent = append(absent, s.c)
			continue
		}
		check("sizeof "+s.key(), uint64(s.size), false, s.grows)
		for _, f := range taggedFields(s.v) {
			check(fmt.Sprintf("offset %s %s", s.key(), f.Tag.Get("c")), uint64(f.Offset), false, false)
			check(fmt.Sprintf("width %s %s", s.key(), f.Tag.Get("c")), uint64(f.Type.Size()), false, false)
		}
	}
	for r, name := range namedRequests {
		got, ok := c["const "+name]
		if growingRequests[r] && ok {
			if !Request(got).Same(r) || Request(got).Size() < r.Size() {
				t.Errorf("%s: %#x in the headers, %#x here", name, got, uint32(r))
			}
			continue
		}
		check("const "+name, uint64(r), newRequests[r], false)
	}
	for name, v := range cConsts {
		check("const "+name, v, false, false)
	}
	for name, v := range newConsts {
		check("const "+name, v, true, false)
	}
	if len(absent) > 0 {
		t.Logf("this machine's headers are older than: %s", strings.Join(absent, ", "))
	}
}

// TestLayoutIsExplicit holds the rule of the package comment: no hidden
// padding, so that encoding/binary and the Go compiler agree.
func TestLayoutIsExplicit(t *testing.T) {
	kernelPrivate := []cStruct{
		{c: "kfd_criu_process_priv_data", v: KFDPrivProcess{}, size: 8},
		{c: "kfd_criu_device_priv_data", v: KFDPrivDevice{}, size: 8},
		{c: "kfd_criu_bo_priv_data", v: KFDPrivBO{}, size: 272},
		{c: "kfd_criu_queue_priv_data", v: KFDPrivQueue{}, size: 120},
		{c: "kfd_criu_event_priv_data", v: KFDPrivEvent{}, size: 64},
		{c: "kfd_criu_svm_range_priv_data", v: KFDPrivSVMRange{}, size: 24},
	}
	for _, s := range append(kernelPrivate, cStructs...) {
		typ := reflect.TypeOf(s.v)
		buf := make([]byte, s.size+1)
		for i := range buf {
			buf[i] = 0xaa
		}
		if typ.Size() != s.size {
			t.Errorf("%s: size %d in Go, want %d", s.c, typ.Size(), s.size)
		}
		if err := Encode(buf, s.v); err != nil {
			t.Errorf("%s: %v", s.c, err)
		}
		if i := bytes.IndexByte(buf, 0xaa); i != int(s.size) {
			t.Errorf("%s: encodes to %d bytes, want %d", s.c, i, s.size)
		}
	}
}

func taggedFields(v any) []reflect.StructField {
	var out []reflect.StructField
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		if f.Tag.Get("c") != "" && len(f.Index) == 1 {
			out = append(out, f)
		}
	}
	return out
}

func headerProgram() string {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <fcntl.h>\n" +
		"#include <linux/kfd_ioctl.h>\n#include <drm/drm.h>\n#include <drm/amdgpu_drm.h>\n" +
		"#define P(key, v) printf(\"%s\\t%llu\\n\", key, (unsigned long long)(v))\n" +
		"int main(void) {\n")
	guard := func(macro string, body string) {
		if macro == "" {
			b.WriteString(body)
			return
		}
		fmt.Fprintf(&b, "#ifdef %s\n%s#endif\n", macro, body)
	}
	for _, s := range cStructs {
		body := fmt.Sprintf("P(\"sizeof %s\", sizeof(%s));\n", s.key(), s.c)
		for _, f := range taggedFields(s.v) {
			m := f.Tag.Get("c")
			body += fmt.Sprintf("P(\"offset %s %s\", offsetof(%s, %s));\n", s.key(), m, s.c, m)
			body += fmt.Sprintf("P(\"width %s %s\", sizeof(((%s *)0)->%s));\n", s.key(), m, s.c, m)
		}
		guard(s.guard, body)
	}
	// The DRM macros are int: keep the request unsigned before it widens.
	for r, name := range namedRequests {
		macro := ""
		if newRequests[r] {
			macro = name
		}
		guard(macro, fmt.Sprintf("P(\"const %s\", (__u32)%s);\n", name, name))
	}
	for name := range cConsts {
		guard("", fmt.Sprintf("P(\"const %s\", %s);\n", name, name))
	}
	for name := range newConsts {
		guard(name, fmt.Sprintf("P(\"const %s\", %s);\n", name, name))
	}
	b.WriteString("return 0; }\n")
	return b.String()
}

// runC compiles and runs src and returns the key-value lines it prints.
func runC(t *testing.T, src string) map[string]uint64 {
	t.Helper()
	dir := t.TempDir()
	// Debian ships the DRM headers under libdrm/, while kfd_ioctl.h includes
	// <drm/drm.h>.
	args := []string{"-Wall", "-Werror", "-o", filepath.Join(dir, "abi")}
	if _, err := os.Stat("/usr/include/drm/amdgpu_drm.h"); err != nil {
		if _, err := os.Stat("/usr/include/libdrm/amdgpu_drm.h"); err != nil {
			t.Fatalf("no amdgpu_drm.h on this machine\n%s", headerHint)
		}
		if err := os.Symlink("/usr/include/libdrm", filepath.Join(dir, "drm")); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-I"+dir)
	}
	file := filepath.Join(dir, "abi.c")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", append(args, file)...).CombinedOutput(); err != nil {
		t.Fatalf("compile against the kernel headers: %v\n%s\n%s", err, out, headerHint)
	}
	out, err := exec.Command(filepath.Join(dir, "abi")).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for line := range strings.Lines(string(out)) {
		key, val, ok := strings.Cut(strings.TrimSpace(line), "\t")
		var v uint64
		if _, err := fmt.Sscan(val, &v); !ok || err != nil {
			t.Fatalf("unexpected output %q", line)
		}
		got[key] = v
	}
	return got
}
