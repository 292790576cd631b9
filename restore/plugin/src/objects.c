/*
 * Buffer objects of render nodes: made on one, or imported into one as a dma-buf.
 * The KFD does not know them. The helper finds, makes and imports them; what only
 * CRIU or a task can do is here: descriptors that a request returns.
 */
#define _GNU_SOURCE
#include "kfd.h"
#include "plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool is_dmabuf(int fd, const struct stat *st)
{
	static const char name[] = "/dmabuf:";
	char link[64], path[32];
	ssize_t n;

	if (st->st_mode & S_IFMT)
		return false;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, link, sizeof(link));
	return n >= (ssize_t)sizeof(name) - 1 && !memcmp(link, name, sizeof(name) - 1);
}

/* The dma-buf of an object of a render node, or a negative errno. */
static int export_object(int node, uint32_t handle)
{
	struct drm_prime args = { .handle = handle, .flags = O_CLOEXEC | O_RDWR };
	int tries, ret = patient_ioctl(node, DRM_IOC_PRIME_HANDLE_TO_FD, &args, &tries);

	return ret ? ret : args.fd;
}

int export_objects(int sock, int node, struct gpucr_msg *msg, int *fd)
{
	int ret = 0;

	while (!ret && msg->type == GPUCR_EXPORT) {
		struct gpucr_msg out = { .type = GPUCR_BOS, .first = msg->first };
		int from = *fd >= 0 ? *fd : node, fds[GPUCR_MAX_GPUS];

		if (from < 0 || msg->count > GPUCR_MAX_GPUS)
			ret = fail("gpucr-fs plugin-helper is of another version than this plugin");
		while (!ret && out.count < msg->count && !out.status) {
			fds[out.count] = export_object(from, msg->gpus[out.count]);
			if (fds[out.count] < 0)
				out.status = fds[out.count];
			else
				out.count++;
		}
		if (!ret)
			ret = helper_send(sock, &out, fds, out.count);
		while (out.count)
			close(fds[--out.count]);
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		if (!ret)
			ret = helper_answer(sock, msg, fd);
	}
	return ret;
}
