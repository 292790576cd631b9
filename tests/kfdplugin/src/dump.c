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

/* Descriptors of /dev/kfd whose processes are paused. */
static int paused[1024];
static int num_paused;

void unpause_all(void)
{
	while (num_paused) {
		struct kfd_ioctl_criu_args args = { .op = KFD_CRIU_OP_UNPAUSE };
		int fd = paused[--num_paused];

		if (ioctl(fd, AMDKFD_IOC_CRIU_OP, &args))
			note("UNPAUSE failed: %s", strerror(errno));
		close(fd);
	}
}

int host_gpus(struct host_gpu *out)
{
	int n = 0;

	for (int node = 0; node < 256 && n < MAX_GPUS; node++) {
		char path[128], line[256];
		long val, id = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/sys/class/kfd/kfd/topology/nodes/%d/gpu_id", node);
		f = fopen(path, "r");
		if (!f)
			break;
		if (fscanf(f, "%ld", &id) != 1)
			id = 0;
		fclose(f);
		if (!id)
			continue;
		out[n] = (struct host_gpu){ .id = id, .minor = -1 };
		snprintf(path, sizeof(path), "/sys/class/kfd/kfd/topology/nodes/%d/properties", node);
		f = fopen(path, "r");
		while (f && fgets(line, sizeof(line), f))
			if (sscanf(line, "drm_render_minor %ld", &val) == 1)
				out[n].minor = val;
		if (f)
			fclose(f);
		n++;
	}
	return n;
}

int gpu_index(int minor)
{
	struct host_gpu gpus[MAX_GPUS];
	int n = host_gpus(gpus);

	while (n-- > 0 && gpus[n].minor != minor)
		;
	return n;
}

static int minor_of(uint32_t id)
{
	struct host_gpu gpus[MAX_GPUS];
	int n = host_gpus(gpus);

	for (int i = 0; i < n; i++)
		if (gpus[i].id == id)
			return gpus[i].minor;
	return -1;
}

/* Writes one file: head, buckets, private data, then the BOs' contents. */
static int write_image(int id, struct kfd_ioctl_criu_args *args)
{
	struct kfd_criu_device_bucket *devices = (void *)(uintptr_t)args->devices;
	struct kfd_criu_bo_bucket *bos = (void *)(uintptr_t)args->bos;
	struct kfd_image head = { .magic = KFD_IMAGE_MAGIC, .num_devices = args->num_devices, .num_bos = args->num_bos,
				  .num_objects = args->num_objects, .priv_size = args->priv_data_size };
	char name[64];
	int img;

	/* The restore needs to know which render node was whose. */
	for (uint32_t d = 0; d < args->num_devices; d++)
		devices[d].pad = minor_of(devices[d].actual_gpu_id);
	snprintf(name, sizeof(name), "kfdtest-kfd-%d.img", id);
	img = openat(criu_get_image_dir(), name, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
	if (img < 0 || write_all(img, &head, sizeof(head)) ||
		write_all(img, devices, args->num_devices * sizeof(*devices)) ||
	    write_all(img, bos, args->num_bos * sizeof(*bos)) ||
	    write_all(img, (void *)(uintptr_t)args->priv_data, args->priv_data_size))
		return note("write %s: %s", name, strerror(errno));
	for (uint32_t i = 0; i < args->num_bos; i++) {
		if ((int)bos[i].dmabuf_fd < 0)
			continue;
		for (uint32_t d = 0; d < args->num_devices; d++)
			if (devices[d].user_gpu_id == bos[i].gpu_id &&
			    bo_contents(minor_of(devices[d].actual_gpu_id), bos[i].dmabuf_fd, bos[i].size, img, false))
				return note("contents of bo %u not saved", i);
	}
	if (close(img))
		return note("close %s: %s", name, strerror(errno));
	return 0;
}

int dump_kfd(int fd, int id)
{
	struct kfd_ioctl_criu_args args = { .op = KFD_CRIU_OP_PROCESS_INFO };
	struct kfd_criu_bo_bucket *bos;
	int ret, keep;

	if (ioctl(fd, AMDKFD_IOC_CRIU_OP, &args))
		return note("PROCESS_INFO: %s", strerror(errno));
	keep = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (keep < 0 || num_paused == sizeof(paused) / sizeof(paused[0]))
		return note("no descriptor left to unpause by");
	paused[num_paused++] = keep;
	args.devices = (uintptr_t)calloc(args.num_devices, sizeof(struct kfd_criu_device_bucket));
	args.bos = (uintptr_t)calloc(args.num_bos, sizeof(struct kfd_criu_bo_bucket));
	args.priv_data = (uintptr_t)calloc(1, args.priv_data_size);
	if (!args.devices || !args.bos || !args.priv_data)
		return note("out of memory");
	args.op = KFD_CRIU_OP_CHECKPOINT;
	if (ioctl(fd, AMDKFD_IOC_CRIU_OP, &args))
		return note("CHECKPOINT: %s", strerror(errno));
	note("checkpoint of pid %u: %u devices, %u bos, %u objects", args.pid, args.num_devices, args.num_bos,
		args.num_objects);
	ret = write_image(id, &args);
	bos = (void *)(uintptr_t)args.bos;
	for (uint32_t i = 0; i < args.num_bos; i++)
		if ((int)bos[i].dmabuf_fd >= 0)
			close(bos[i].dmabuf_fd);
	free((void *)(uintptr_t)args.devices);
	free(bos);
	free((void *)(uintptr_t)args.priv_data);
	return ret;
}
