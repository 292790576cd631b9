#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "criu_abi.h"
#include "plugin.h"

/*
 * The task's own state: its render nodes, opened once and handed out as
 * duplicates, and where the BOs moved. Descriptors stay above those of the
 * application.
 */
#define FIRST_FD 512

static int render_fds[MAX_GPUS]; /* descriptor + 1, by position of the GPU */
static struct kfd_criu_bo_bucket *moved;
static uint32_t num_moved, num_gpus;
static struct kfd_criu_device_bucket saved_gpus[MAX_GPUS];

static int render_fd(int index)
{
	struct host_gpu gpus[MAX_GPUS];
	char path[64];
	int fd;

	if (index >= host_gpus(gpus))
		return note("no gpu %d here", index);
	if (render_fds[index])
		return render_fds[index] - 1;
	snprintf(path, sizeof(path), "/dev/dri/renderD%d", gpus[index].minor);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return note("open %s: %s", path, strerror(errno));
	render_fds[index] = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD) + 1;
	close(fd);
	return render_fds[index] - 1;
}

int restore_render(int index)
{
	int fd = render_fd(index);

	return fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
}

static int fill(int img, struct kfd_criu_bo_bucket *bos, uint32_t num_bos, struct kfd_criu_device_bucket *devices,
		uint32_t num_devices, struct host_gpu *gpus)
{
	int ret = 0;

	for (uint32_t i = 0; i < num_bos; i++) {
		if ((int)bos[i].dmabuf_fd < 0)
			continue;
		for (uint32_t d = 0; d < num_devices && !ret; d++)
			if (devices[d].user_gpu_id == bos[i].gpu_id)
				ret = bo_contents(gpus[d].minor, bos[i].dmabuf_fd, bos[i].size, img, true);
		close(bos[i].dmabuf_fd);
	}
	return ret;
}

int restore_kfd(int id)
{
	struct host_gpu gpus[MAX_GPUS];
	int n = host_gpus(gpus), kfd, img;
	struct kfd_ioctl_criu_args args = { .op = KFD_CRIU_OP_RESTORE };
	struct kfd_criu_device_bucket *devices;
	struct kfd_image head;
	char name[64];
	void *priv;

	snprintf(name, sizeof(name), "kfdtest-kfd-%d.img", id);
	img = openat(criu_get_image_dir(), name, O_RDONLY | O_CLOEXEC);
	if (img < 0 || read_all(img, &head, sizeof(head)) || head.magic != KFD_IMAGE_MAGIC)
		return note("read %s: %s", name, strerror(errno));
	if ((int)head.num_devices != n)
		return note("%s has %u gpus, this host %d", name, head.num_devices, n);
	devices = calloc(head.num_devices, sizeof(*devices));
	moved = calloc(head.num_bos, sizeof(*moved));
	priv = malloc(head.priv_size);
	if (!devices || !moved || !priv || read_all(img, devices, head.num_devices * sizeof(*devices)) ||
	    read_all(img, moved, head.num_bos * sizeof(*moved)) || read_all(img, priv, head.priv_size))
		return note("read %s: %s", name, strerror(errno));
	kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	if (kfd < 0)
		return note("open /dev/kfd: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		saved_gpus[i] = devices[i];
		devices[i].actual_gpu_id = gpus[i].id;
		devices[i].drm_fd = render_fd(i);
	}
	num_gpus = n;
	num_moved = head.num_bos;
	args.devices = (uintptr_t)devices;
	args.bos = (uintptr_t)moved;
	args.priv_data = (uintptr_t)priv;
	args.priv_data_size = head.priv_size;
	args.num_devices = n;
	args.num_bos = head.num_bos;
	args.num_objects = head.num_objects;
	if (ioctl(kfd, AMDKFD_IOC_CRIU_OP, &args))
		return note("RESTORE: %s", strerror(errno));
	if (fill(img, moved, head.num_bos, devices, n, gpus))
		return -1;
	close(img);
	free(devices);
	free(priv);
	return kfd;
}

int moved_vma(const char *path, uint64_t offset, uint64_t *new_offset, int *fd)
{
	bool render = strstr(path, "/renderD");

	*fd = -1;
	for (uint32_t i = 0; i < num_moved; i++) {
		struct kfd_criu_bo_bucket *bo = &moved[i];
		bool in_kfd = bo->alloc_flags & (KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP);

		if (in_kfd == render || (bo->alloc_flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) || offset < bo->offset ||
		    offset - bo->offset >= bo->size)
			continue;
		/* Offsets of two render nodes may be equal: the path tells which. */
		for (uint32_t d = 0; render && d < num_gpus; d++) {
			if (saved_gpus[d].user_gpu_id != bo->gpu_id)
				continue;
			if ((uint32_t)atoi(strstr(path, "/renderD") + 8) != saved_gpus[d].pad)
				goto next;
			*fd = fcntl(render_fd(d), F_DUPFD_CLOEXEC, FIRST_FD);
		}
		*new_offset = bo->restored_offset + (offset - bo->offset);
		return 1;
next:;
	}
	return 0;
}
