/*
 * Preloaded into criu, and nothing else: makes the simulator's files look like
 * the device nodes they stand for. stat reports them as character devices and a
 * dmabuf as the typeless anonymous file it is, readlink calls the latter
 * "/dmabuf:", and requests that return descriptors get theirs installed.
 *
 * The simulator's files are known by their inode numbers: "KFDS" in the upper
 * half, then a kind in four bits and a number (files_linux.go).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "kfdsim.h"

#define TAG 0x4b464453ull
#define KIND_KFD 1
#define KIND_RENDER 2
#define KIND_DMABUF 3
#define KFD_MAJOR 235
#define DRM_MAJOR 226

#define KIND(ino) ((ino) >> 32 == TAG ? (ino) >> 28 & 0xf : 0)

#define NEXT(name) \
	static __typeof__(&name) next; \
	if (!next) \
		next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void disguise(uint64_t ino, unsigned int *mode, dev_t *rdev)
{
	switch (KIND(ino)) {
	case KIND_KFD:
		*mode = (*mode & 07777) | S_IFCHR;
		*rdev = makedev(KFD_MAJOR, 0);
		break;
	case KIND_RENDER:
		*mode = (*mode & 07777) | S_IFCHR;
		*rdev = makedev(DRM_MAJOR, ino & 0xfffffff);
		break;
	case KIND_DMABUF:
		*mode = 0600;
		break;
	}
}

#define STAT(name, type, params, args) \
	int name params \
	{ \
		NEXT(name); \
		int ret = next args; \
		if (!ret) \
			disguise(st->st_ino, &st->st_mode, &st->st_rdev); \
		return ret; \
	}

STAT(fstat, stat, (int fd, struct stat *st), (fd, st))
STAT(stat, stat, (const char *path, struct stat *st), (path, st))
STAT(lstat, stat, (const char *path, struct stat *st), (path, st))
STAT(fstatat, stat, (int fd, const char *path, struct stat *st, int flags), (fd, path, st, flags))
STAT(fstat64, stat64, (int fd, struct stat64 *st), (fd, st))
STAT(stat64, stat64, (const char *path, struct stat64 *st), (path, st))
STAT(lstat64, stat64, (const char *path, struct stat64 *st), (path, st))
STAT(fstatat64, stat64, (int fd, const char *path, struct stat64 *st, int flags), (fd, path, st, flags))

int statx(int fd, const char *path, int flags, unsigned int mask, struct statx *st)
{
	NEXT(statx);
	int ret = next(fd, path, flags, mask, st);

	if (!ret) {
		unsigned int mode = st->stx_mode;
		dev_t rdev = makedev(st->stx_rdev_major, st->stx_rdev_minor);

		disguise(st->stx_ino, &mode, &rdev);
		st->stx_mode = mode;
		st->stx_rdev_major = major(rdev);
		st->stx_rdev_minor = minor(rdev);
	}
	return ret;
}

static ssize_t link_name(int fd, const char *path, char *buf, size_t size, ssize_t ret)
{
	static const char name[] = "/dmabuf:";
	struct stat st;

	if (ret <= 0 || fstatat(fd, path, &st, 0) || KIND(st.st_ino) != KIND_DMABUF)
		return ret;
	ret = size < sizeof(name) - 1 ? size : sizeof(name) - 1;
	memcpy(buf, name, ret);
	return ret;
}

ssize_t readlink(const char *path, char *buf, size_t size)
{
	NEXT(readlink);
	return link_name(AT_FDCWD, path, buf, size, next(path, buf, size));
}

ssize_t readlinkat(int fd, const char *path, char *buf, size_t size)
{
	NEXT(readlinkat);
	return link_name(fd, path, buf, size, next(fd, path, buf, size));
}

/* The arguments of the requests that return descriptors. */
struct prime {
	uint32_t handle, flags;
	int32_t fd;
};
struct export_dmabuf {
	uint64_t handle;
	uint32_t flags, fd;
};
struct criu {
	uint64_t devices, bos, priv_data, priv_data_size;
	uint32_t num_devices, num_bos, num_objects, pid, op, pad;
};
struct criu_bo {
	uint64_t addr, size, offset, restored_offset;
	uint32_t gpu_id, alloc_flags, dmabuf_fd, pad;
};

#define NR_AND_TYPE(request) ((request) & 0xffff)
#define PRIME_HANDLE_TO_FD 0x642d
#define EXPORT_DMABUF 0x4b24
#define CRIU_OP 0x4b22

static int install_all(int fd, struct criu *args)
{
	struct criu_bo *bos = (struct criu_bo *)(uintptr_t)args->bos;

	for (uint32_t i = 0; bos && i < args->num_bos; i++) {
		int got = kfdsim_install_fd(fd, bos[i].dmabuf_fd, 0);

		if (got < 0 && KFDSIM_IS_TOKEN(bos[i].dmabuf_fd)) {
			int err = errno;

			while (i--)
				if ((int32_t)bos[i].dmabuf_fd >= 0)
					close(bos[i].dmabuf_fd);
			errno = err;
			return -1;
		}
		bos[i].dmabuf_fd = got;
	}
	return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
	NEXT(ioctl);
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);

	uint32_t op = NR_AND_TYPE(request) == CRIU_OP ? ((struct criu *)arg)->op : 0;
	int ret = next(fd, request, arg);

	if (ret)
		return ret;
	switch (NR_AND_TYPE(request)) {
	case PRIME_HANDLE_TO_FD: {
		struct prime *args = arg;

		args->fd = kfdsim_install_fd(fd, args->fd, args->flags & O_CLOEXEC);
		return args->fd < 0 ? -1 : 0;
	}
	case EXPORT_DMABUF: {
		struct export_dmabuf *args = arg;
		int got = kfdsim_install_fd(fd, args->fd, args->flags & O_CLOEXEC);

		args->fd = got;
		return got < 0 ? -1 : 0;
	}
	case CRIU_OP:
		if (op == 1 || op == 3) /* CHECKPOINT, RESTORE */
			return install_all(fd, arg);
	}
	return 0;
}
