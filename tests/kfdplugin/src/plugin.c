/*
 * A minimal CRIU plugin for AMD GPUs, for tests of the simulator alone: it does
 * what criu's hooks need for a process to come back, one step after another,
 * with images of its own format. Every hook that fires is noted.
 */
#define _GNU_SOURCE
#include "plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "criu_abi.h"

#define DRM_MAJOR 226

int note(const char *fmt, ...)
{
	const char *path = getenv("KFDPLUGIN_LOG");
	char line[512];
	va_list ap;
	int n, fd;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
	if (fd >= 0) {
		write_all(fd, line, n);
		close(fd);
	}
	return -1;
}

int read_all(int fd, void *buf, uint64_t n)
{
	while (n) {
		ssize_t got = read(fd, buf, n);

		if (got <= 0)
			return -1;
		buf = (char *)buf + got;
		n -= got;
	}
	return 0;
}

int write_all(int fd, const void *buf, uint64_t n)
{
	while (n) {
		ssize_t put = write(fd, buf, n);

		if (put <= 0)
			return -1;
		buf = (const char *)buf + put;
		n -= put;
	}
	return 0;
}

static int init(int stage)
{
	note("init stage=%d", stage);
	return 0;
}

static void fini(int stage, int ret)
{
	note("exit stage=%d ret=%d", stage, ret);
	if (stage == STAGE_DUMP)
		unpause_all();
}

static int open_image(const char *kind, int id, int flags)
{
	char name[64];

	snprintf(name, sizeof(name), "%s-%d.img", kind, id);
	return openat(criu_get_image_dir(), name, flags | O_CLOEXEC, 0600);
}

static int dump_file(int fd, int id)
{
	struct stat st;
	int index, img;

	if (fstat(fd, &st) || !S_ISCHR(st.st_mode))
		return -ENOTSUP;
	note("DUMP_EXT_FILE id=%d dev=%u:%u", id, major(st.st_rdev), minor(st.st_rdev));
	if (major(st.st_rdev) != DRM_MAJOR)
		return dump_kfd(fd, id);
	/* Its position among the GPUs: the other host has its own numbers. */
	index = gpu_index(minor(st.st_rdev));
	img = open_image("kfdtest-render", id, O_CREAT | O_WRONLY | O_TRUNC);
	if (index < 0 || img < 0 || write_all(img, &index, sizeof(index)))
		return note("write the image of a render node: %s", strerror(errno));
	close(img);
	return 0;
}

static int restore_file(int id)
{
	int index, fd, img = open_image("kfdtest-render", id, O_RDONLY);

	if (img < 0) {
		fd = restore_kfd(id);
		note("RESTORE_EXT_FILE id=%d kfd fd=%d", id, fd);
		return fd;
	}
	if (read_all(img, &index, sizeof(index)))
		return note("read the image of a render node: %s", strerror(errno));
	close(img);
	fd = restore_render(index);
	note("RESTORE_EXT_FILE id=%d render node %d fd=%d", id, index, fd);
	return fd;
}

static int handle_vma(int fd, const struct stat *st)
{
	(void)fd;
	note("HANDLE_DEVICE_VMA dev=%u:%u", major(st->st_rdev), minor(st->st_rdev));
	return 0;
}

static int update_vma(const char *path, uint64_t addr, uint64_t old_offset, uint64_t *new_offset, int *fd)
{
	int ret = moved_vma(path, old_offset, new_offset, fd);

	note("UPDATE_VMA_MAP %s addr=%#lx %#lx -> %#lx ret=%d", path, (long)addr, (long)old_offset,
	     ret == 1 ? (long)*new_offset : 0l, ret);
	return ret;
}

static int resume_late(int pid)
{
	struct kfd_ioctl_criu_args args = { .pid = pid, .op = KFD_CRIU_OP_RESUME };
	int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	int ret = ioctl(fd, AMDKFD_IOC_CRIU_OP, &args) ? errno : 0;

	note("RESUME_DEVICES_LATE pid=%d %s", pid, ret ? strerror(ret) : "ok");
	close(fd);
	return ret == ESRCH ? -ENOTSUP : -ret;
}

static int pause_devices(int pid)
{
	note("PAUSE_DEVICES pid=%d", pid);
	return 0;
}

static int checkpoint_devices(int pid)
{
	note("CHECKPOINT_DEVICES pid=%d", pid);
	return 0;
}

static int post_forking(void)
{
	note("POST_FORKING");
	return 0;
}

__attribute__((visibility("default"))) struct plugin_desc CR_PLUGIN_DESC = {
	.name = "kfdsim_test",
	.init = init,
	.exit = fini,
	.version = PLUGIN_VERSION,
	.max_hooks = HOOK_MAX,
	.hooks = {
		[HOOK_DUMP_EXT_FILE] = dump_file,
		[HOOK_RESTORE_EXT_FILE] = restore_file,
		[HOOK_HANDLE_DEVICE_VMA] = handle_vma,
		[HOOK_UPDATE_VMA_MAP] = update_vma,
		[HOOK_RESUME_DEVICES_LATE] = resume_late,
		[HOOK_PAUSE_DEVICES] = pause_devices,
		[HOOK_CHECKPOINT_DEVICES] = checkpoint_devices,
		[HOOK_POST_FORKING] = post_forking,
	},
};
