#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <amdgpu_drm.h>

#include "plugin.h"

#define FAMILY_GFX12 152 /* older headers do not have it */
#define STAGING (1u << 20)
#define VA_IB 0x1000000ull
#define VA_STAGING 0x2000000ull
#define VA_BO 0x10000000ull

static int retry(int fd, unsigned long request, void *arg)
{
	int ret;

	do
		ret = ioctl(fd, request, arg);
	while (ret && (errno == EINTR || errno == EAGAIN));
	return ret;
}

static int va_op(int drm, uint32_t handle, uint32_t op, uint64_t va, uint64_t size)
{
	struct drm_amdgpu_gem_va args = {
		.handle = handle, .operation = op, .va_address = va, .map_size = size,
		.flags = AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE | AMDGPU_VM_PAGE_EXECUTABLE,
	};

	return retry(drm, DRM_IOCTL_AMDGPU_GEM_VA, &args);
}

static void *map_bo(int drm, uint32_t handle, uint64_t size)
{
	union drm_amdgpu_gem_mmap args = { .in.handle = handle };

	if (retry(drm, DRM_IOCTL_AMDGPU_GEM_MMAP, &args))
		return MAP_FAILED;
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, drm, args.out.addr_ptr);
}

static int file_to_or_from(int file, void *mem, uint64_t size, bool from_file)
{
	return from_file ? read_all(file, mem, size) : write_all(file, mem, size);
}

/* One SDMA context with a staging buffer, an IB and the BO mapped. */
struct sdma {
	int drm;
	uint32_t ctx, family, staging, ib, bo;
	void *staging_mem;
	uint32_t *ib_mem;
};

static int sdma_open(struct sdma *s, uint64_t size)
{
	union drm_amdgpu_ctx ctx = { .in.op = AMDGPU_CTX_OP_ALLOC_CTX };
	union drm_amdgpu_gem_create ib = { .in = { .bo_size = 4096, .alignment = 4096, .domains = AMDGPU_GEM_DOMAIN_GTT } };
	struct drm_amdgpu_info_device dev = { 0 };
	struct drm_amdgpu_info info = { .return_pointer = (uintptr_t)&dev, .return_size = sizeof(dev),
		.query = AMDGPU_INFO_DEV_INFO };
	struct drm_amdgpu_gem_userptr user = { .size = STAGING,
		.flags = AMDGPU_GEM_USERPTR_ANONONLY | AMDGPU_GEM_USERPTR_REGISTER | AMDGPU_GEM_USERPTR_VALIDATE };

	s->staging_mem = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s->staging_mem == MAP_FAILED)
		return -1;
	user.addr = (uintptr_t)s->staging_mem;
	if (retry(s->drm, DRM_IOCTL_AMDGPU_INFO, &info) || retry(s->drm, DRM_IOCTL_AMDGPU_CTX, &ctx) ||
	    retry(s->drm, DRM_IOCTL_AMDGPU_GEM_CREATE, &ib) || retry(s->drm, DRM_IOCTL_AMDGPU_GEM_USERPTR, &user))
		return -1;
	s->family = dev.family;
	s->ctx = ctx.out.alloc.ctx_id;
	s->ib = ib.out.handle;
	s->staging = user.handle;
	s->ib_mem = map_bo(s->drm, s->ib, 4096);
	if (s->ib_mem == MAP_FAILED)
		return -1;
	return va_op(s->drm, s->ib, AMDGPU_VA_OP_MAP, VA_IB, 4096) ||
	       va_op(s->drm, s->staging, AMDGPU_VA_OP_MAP, VA_STAGING, STAGING) ||
	       va_op(s->drm, s->bo, AMDGPU_VA_OP_MAP, VA_BO, size) ? -1 : 0;
}

static int sdma_copy(struct sdma *s, uint64_t dst, uint64_t src, uint32_t n)
{
	struct drm_amdgpu_bo_list_entry bos[] = { { s->bo, 0 }, { s->staging, 0 }, { s->ib, 0 } };
	struct drm_amdgpu_bo_list_in list = { .operation = ~0u, .list_handle = ~0u, .bo_number = 3,
		.bo_info_size = sizeof(bos[0]), .bo_info_ptr = (uintptr_t)bos };
	struct drm_amdgpu_cs_chunk_ib ib = { .va_start = VA_IB, .ip_type = AMDGPU_HW_IP_DMA };
	struct drm_amdgpu_cs_chunk chunks[] = {
		{ .chunk_id = AMDGPU_CHUNK_ID_BO_HANDLES, .length_dw = sizeof(list) / 4, .chunk_data = (uintptr_t)&list },
		{ .chunk_id = AMDGPU_CHUNK_ID_IB, .length_dw = sizeof(ib) / 4, .chunk_data = (uintptr_t)&ib },
	};
	uint64_t ptrs[] = { (uintptr_t)&chunks[0], (uintptr_t)&chunks[1] };
	union drm_amdgpu_cs cs = { .in = { .ctx_id = s->ctx, .num_chunks = 2, .chunks = (uintptr_t)ptrs } };
	union drm_amdgpu_wait_cs wait;
	/* From GFX9 on the count is one less; GFX12 has an eighth dword, and a bit (CPV) that says so. */
	uint32_t packet[8] = { s->family >= FAMILY_GFX12 ? 1 | 1 << 19 : 1, s->family >= AMDGPU_FAMILY_AI ? n - 1 : n, 0,
		src, src >> 32, dst, dst >> 32, 0 };

	memcpy(s->ib_mem, packet, sizeof(packet));
	ib.ib_bytes = sizeof(packet);
	if (retry(s->drm, DRM_IOCTL_AMDGPU_CS, &cs))
		return note("CS: %s", strerror(errno));
	wait = (union drm_amdgpu_wait_cs){ .in = { .handle = cs.out.handle, .timeout = ~0ull >> 1,
		.ip_type = AMDGPU_HW_IP_DMA, .ctx_id = s->ctx } };
	if (retry(s->drm, DRM_IOCTL_AMDGPU_WAIT_CS, &wait))
		return note("WAIT_CS: %s", strerror(errno));
	return wait.out.status ? note("DMA is not done") : 0;
}

static int by_sdma(int drm, uint32_t handle, uint64_t size, int file, bool write_bo)
{
	struct sdma s = { .drm = drm, .bo = handle };
	int ret = sdma_open(&s, size);

	if (ret)
		note("set up SDMA: %s", strerror(errno));
	for (uint64_t at = 0; at < size && !ret; at += STAGING) {
		uint32_t n = size - at < STAGING ? size - at : STAGING;

		if (write_bo)
			ret = read_all(file, s.staging_mem, n) || sdma_copy(&s, VA_BO + at, VA_STAGING, n);
		else
			ret = sdma_copy(&s, VA_STAGING, VA_BO + at, n) || write_all(file, s.staging_mem, n);
	}
	if (s.ib_mem && s.ib_mem != MAP_FAILED)
		munmap(s.ib_mem, 4096);
	if (s.staging_mem != MAP_FAILED)
		munmap(s.staging_mem, STAGING);
	return ret ? -1 : 0;
}

int bo_contents(int minor, int dmabuf_fd, uint64_t size, int file, bool write_bo)
{
	struct drm_prime_handle prime = { .fd = dmabuf_fd };
	const char *how = getenv("KFDPLUGIN_COPY");
	char path[64];
	void *mem = MAP_FAILED;
	int drm, ret;

	if (lseek(dmabuf_fd, 0, SEEK_END) != (off_t)size)
		return note("dmabuf is not of %llu bytes", (unsigned long long)size);
	snprintf(path, sizeof(path), "/dev/dri/renderD%d", minor);
	drm = open(path, O_RDWR | O_CLOEXEC);
	if (drm < 0 || retry(drm, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime))
		return note("import a bo on %s: %s", path, strerror(errno));
	if (!how || strcmp(how, "sdma"))
		mem = map_bo(drm, prime.handle, size);
	if (mem != MAP_FAILED) {
		ret = file_to_or_from(file, mem, size, write_bo);
		munmap(mem, size);
	} else {
		ret = by_sdma(drm, prime.handle, size, file, write_bo);
	}
	close(drm);
	return ret;
}
