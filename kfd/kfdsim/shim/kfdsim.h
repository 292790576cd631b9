/*
 * How a C program turns what the simulator returns in place of a descriptor
 * into one. A request that returns a descriptor (PRIME_HANDLE_TO_FD,
 * EXPORT_DMABUF, the BOs of CRIU_OP) returns a token on the simulator: a number
 * no descriptor has. On real hardware kfdsim_install_fd does nothing.
 */
#ifndef KFDSIM_H
#define KFDSIM_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define KFDSIM_TOKEN_BASE 0x40000000u
#define KFDSIM_IS_TOKEN(n) ((uint32_t)(n) >= KFDSIM_TOKEN_BASE && (uint32_t)(n) < 2 * KFDSIM_TOKEN_BASE)

struct kfdsim_claim {
	uint32_t token;
	uint32_t bytes; /* of handle */
	int32_t type;
	uint8_t handle[36];
};

#define KFDSIM_IOC_CLAIM _IOWR('~', 2, struct kfdsim_claim)
#define KFDSIM_IOC_DROP _IOW('~', 3, uint32_t)

/*
 * Returns the descriptor behind a token, opened with O_RDWR | flags, or n itself
 * if it is none; -1 and errno on failure. devfd is the device file that the
 * token came from. Needs CAP_DAC_READ_SEARCH.
 */
static inline int kfdsim_install_fd(int devfd, uint32_t n, int flags)
{
	struct kfdsim_claim claim = { .token = n };
	struct file_handle *handle;
	int fd, err;

	if (!KFDSIM_IS_TOKEN(n))
		return (int)n;
	if (ioctl(devfd, KFDSIM_IOC_CLAIM, &claim))
		return -1;
	handle = malloc(sizeof(*handle) + sizeof(claim.handle));
	if (!handle)
		return -1;
	handle->handle_bytes = claim.bytes;
	handle->handle_type = claim.type;
	memcpy(handle->f_handle, claim.handle, claim.bytes);
	fd = open_by_handle_at(devfd, handle, O_RDWR | flags);
	err = errno;
	free(handle);
	ioctl(devfd, KFDSIM_IOC_DROP, &n);
	errno = err;
	return fd;
}

#endif
