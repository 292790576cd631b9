/*
 * The part of linux/kfd_ioctl.h that the plugin needs, written down here because
 * that header asks for one of libdrm's. A test of package wire compares.
 */
#ifndef GPUCR_KFD_H
#define GPUCR_KFD_H

#include <stdint.h>
#include <sys/ioctl.h>

struct kfd_criu_args {
	uint64_t devices, bos, priv_data, priv_data_size; /* addresses, and a size */
	uint32_t num_devices, num_bos, num_objects, pid, op;
};

struct kfd_device {
	uint32_t user_gpu_id, actual_gpu_id, drm_fd, pad;
};

struct kfd_bo {
	uint64_t addr, size, offset, restored_offset;
	uint32_t gpu_id, alloc_flags, dmabuf_fd, pad;
};

struct kfd_apertures {
	uint64_t lds_base, lds_limit, scratch_base, scratch_limit, gpuvm_base, gpuvm_limit;
	uint32_t gpu_id, pad;
};

struct kfd_apertures_args {
	uint64_t kfd_process_device_apertures_ptr; /* address */
	uint32_t num_of_nodes, pad;
};

/* Of drm.h. */
struct drm_prime {
	uint32_t handle, flags;
	int32_t fd;
};

enum { KFD_PROCESS_INFO, KFD_CHECKPOINT, KFD_UNPAUSE, KFD_RESTORE, KFD_RESUME };

#define KFD_IOC_CRIU_OP _IOWR('K', 0x22, struct kfd_criu_args)
#define KFD_IOC_APERTURES _IOWR('K', 0x14, struct kfd_apertures_args)
#define DRM_IOC_PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct drm_prime)

#endif
