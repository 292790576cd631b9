/*
 * Restoring. A task opens /dev/kfd and its render nodes and issues RESTORE from
 * buffers that the helper has made ready; the BOs go to the restore server, which has
 * them filled while CRIU restores the rest. No descriptor of the plugin's stays in a task:
 * what later hooks need lies in CRIU's fdstore.
 */
#define _GNU_SOURCE
#include "kfd.h"
#include "plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* How often RESTORE is asked for again when a signal has interrupted it. */
#define MAX_INTERRUPTS 100

/*
 * This task's render nodes by minor, as fdstore id + 1: one open of each, as
 * only that may map the BOs.
 */
static int stored_nodes[MAX_MINORS];

/* This task's BOs, after RESTORE. */
static const struct gpucr_range *ranges;
static const struct kfd_bo *bos;
static const struct kfd_device *gpus;
static uint32_t num_ranges, num_gpus;

static bool failed;

bool resume_failed(void)
{
	return failed;
}

/*
 * Opens a device in this task's file system, which a container's image may have
 * laid out: no link leads from there to a descriptor of CRIU's, and a render node
 * is taken for its number, not for its name. number is 0 for /dev/kfd.
 */
static int open_device(const char *path, uint32_t number)
{
	struct open_how how = { .flags = O_RDWR | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS };
	int fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
	struct stat st;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) || !S_ISCHR(st.st_mode) ||
	    (number && (major(st.st_rdev) != DRM_MAJOR || minor(st.st_rdev) != number))) {
		close(fd);
		errno = ENODEV;
		return -1;
	}
	return fd;
}

/* Opens a render node, by its path or with the helper's help. */
static int open_node(int sock, uint32_t minor)
{
	struct gpucr_msg msg = { .type = GPUCR_NODE, .minor = minor };
	char path[64];
	int fd, ret;

	if (minor < FIRST_RENDER_MINOR || minor - FIRST_RENDER_MINOR >= MAX_MINORS)
		return fail("there is no render node %u", minor);
	snprintf(path, sizeof(path), "/dev/dri/renderD%u", minor);
	fd = open_device(path, minor);
	if (fd < 0 && sock >= 0) {
		/* The container calls it otherwise. */
		ret = helper_send(sock, &msg, NULL, 0);
		if (!ret)
			ret = helper_answer(sock, &msg, &fd);
		if (ret)
			return ret;
	}
	if (fd < 0)
		return fail("open %s: %s", path, strerror(errno));
	return fd;
}

/* A new descriptor of this task's open of a render node. */
static int node(int sock, uint32_t minor)
{
	int fd, id;

	if (minor >= FIRST_RENDER_MINOR && minor - FIRST_RENDER_MINOR < MAX_MINORS) {
		id = stored_nodes[minor - FIRST_RENDER_MINOR];
		if (id)
			return fdstore_get(id - 1);
	}
	fd = open_node(sock, minor);
	if (fd < 0)
		return fd;
	id = fdstore_add(fd);
	if (id < 0) {
		close(fd);
		return fail("render node %u cannot be stored", minor);
	}
	stored_nodes[minor - FIRST_RENDER_MINOR] = id + 1;
	return fd;
}

/*
 * The GPUs that this task sees: a container's device cgroup may hide others, and
 * RESTORE asks for these exactly. None where there is no /dev/kfd.
 */
static int visible_gpus(struct gpucr_msg *msg)
{
	/* Asked before RESTORE gives them the ids of the dump. */
	static uint32_t ids[GPUCR_MAX_GPUS], num_ids;
	static bool asked;
	struct kfd_apertures gpu[GPUCR_MAX_GPUS];
	struct kfd_apertures_args args = {
		.kfd_process_device_apertures_ptr = (uintptr_t)gpu, .num_of_nodes = GPUCR_MAX_GPUS,
	};
	int kfd, ret;

	if (asked)
		goto out;
	asked = true;
	kfd = open_device("/dev/kfd", 0);
	if (kfd < 0)
		return 0;
	ret = kfd_ioctl(kfd, KFD_IOC_APERTURES, &args, "GPUs of this process");
	close(kfd);
	if (ret)
		return ret;
	for (uint32_t i = 0; i < args.num_of_nodes && i < GPUCR_MAX_GPUS; i++)
		ids[num_ids++] = gpu[i].gpu_id;
out:
	memcpy(msg->gpus, ids, sizeof(ids));
	msg->num_devices = num_ids;
	return 0;
}

/* Issues RESTORE in the shared memory and hands the BOs over. */
static int restore_into(int sock, int kfd, char *mem, const struct gpucr_msg *msg)
{
	struct kfd_device *devices = (void *)(mem + msg->devices);
	struct kfd_bo *buckets = (void *)(mem + msg->bos);
	struct kfd_criu_args args = {
		.op = KFD_RESTORE, .devices = (uintptr_t)devices, .num_devices = msg->num_devices,
		.bos = (uintptr_t)buckets, .num_bos = msg->num_bos, .priv_data = (uintptr_t)mem + msg->priv,
		.priv_data_size = msg->priv_size, .num_objects = msg->num_objects,
	};
	struct gpucr_msg done = { .type = GPUCR_RESTORED };
	int ret = 0, fd;
	uint32_t opened;

	/* In place of a descriptor, the helper has put the minor. */
	for (opened = 0; opened < msg->num_devices && !ret; opened++) {
		uint32_t minor = devices[opened].drm_fd;

		fd = node(sock, minor);
		if (fd < 0) {
			ret = fd;
			break;
		}
		devices[opened].drm_fd = fd;
		devices[opened].pad = minor;
	}
	if (!ret) {
		int tries = 0;

		do
			ret = ioctl(kfd, KFD_IOC_CRIU_OP, &args) ? -errno : 0;
		while (ret == -EINTR && ++tries < MAX_INTERRUPTS);
		if (ret)
			say(LOG_ERROR, "Error: RESTORE of %u GPUs, %u buffer objects, %u objects: %s%s", args.num_devices,
			    args.num_bos, args.num_objects, strerror(-ret),
			    tries ? " (asked again after an interruption, which the driver may not allow)" : "");
	}
	for (uint32_t i = 0; i < opened; i++) {
		close(devices[i].drm_fd);
		devices[i].drm_fd = ~0u;
	}
	done.status = ret;
	if (!ret)
		ret = helper_send_bos(sock, (const int32_t *)&buckets->dmabuf_fd, sizeof(*buckets), msg->num_bos);
	for (uint32_t i = 0; i < msg->num_bos && !done.status; i++)
		if ((int)buckets[i].dmabuf_fd >= 0)
			close(buckets[i].dmabuf_fd);
	if (ret && !done.status)
		return ret;
	if (helper_send(sock, &done, NULL, 0) || done.status)
		return done.status ? done.status : -EPIPE;
	return helper_answer(sock, &done, &fd);
}

static int restore_kfd(int sock, const struct gpucr_msg *msg, int shared)
{
	char *mem = mmap(NULL, msg->size, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	int kfd, ret;

	if (mem == MAP_FAILED)
		return fail("memory for %llu bytes of state: %s", (unsigned long long)msg->size, strerror(errno));
	kfd = open_device("/dev/kfd", 0);
	if (kfd < 0) {
		munmap(mem, msg->size);
		return fail("open /dev/kfd: %s", strerror(errno));
	}
	ret = restore_into(sock, kfd, mem, msg);
	if (ret) {
		close(kfd);
		munmap(mem, msg->size);
		return ret;
	}
	/* The mapping stays for update_vma_map; CRIU's restorer removes it. */
	ranges = (void *)(mem + msg->ranges);
	bos = (void *)(mem + msg->bos);
	gpus = (void *)(mem + msg->devices);
	num_ranges = msg->num_ranges;
	num_gpus = msg->num_devices;
	return kfd;
}

/*
 * A render node with buffer objects of its own. The first of a GPU is this task's
 * open of it, which the KFD gets; handles of a second one would not fit in there.
 */
static int restore_node(int sock, const struct gpucr_msg *msg)
{
	static bool has_objects[MAX_MINORS];
	struct gpucr_msg objects = { .type = GPUCR_OBJECTS, .id = msg->id };
	uint32_t i = msg->minor - FIRST_RENDER_MINOR;
	bool first = i < MAX_MINORS && !has_objects[i];
	int fd = first || !msg->count ? node(sock, msg->minor) : open_node(sock, msg->minor), none = -1, ret;

	if (fd < 0 || !msg->count)
		return fd;
	has_objects[i] = true;
	ret = helper_send(sock, &objects, &fd, 1);
	if (!ret)
		ret = helper_answer(sock, &objects, &none);
	if (!ret)
		ret = export_objects(sock, fd, &objects, &none);
	if (none >= 0)
		close(none);
	if (ret) {
		close(fd);
		return ret;
	}
	return fd;
}

int restore_ext_file(int id)
{
	/* A KFD that was restored before its turn, as fdstore id + 1. */
	static int early, early_id;
	struct gpucr_msg msg = { .type = GPUCR_FILE, .id = id, .pid = getpid() };
	int sock, shared = -1, ret;

	if (early && early_id == id)
		return fdstore_get(early - 1);
	sock = helper_attach();
	if (sock < 0)
		return sock;
	ret = visible_gpus(&msg);
	if (!ret)
		ret = helper_send(sock, &msg, NULL, 0);
	if (!ret)
		ret = helper_answer(sock, &msg, &shared);
	if (!ret) {
		if (msg.type == GPUCR_EXPORT)
			ret = export_objects(sock, -1, &msg, &shared);
		if (ret || msg.type == GPUCR_FILE)
			;
		else if (msg.type == GPUCR_KFD)
			ret = restore_kfd(sock, &msg, shared);
		else if (msg.type == GPUCR_RENDER) {
			msg.id = id;
			ret = restore_node(sock, &msg);
		} else {
			ret = shared; /* a dma-buf */
			shared = -1;
		}
	}
	if (shared >= 0)
		close(shared);
	close(sock);
	if (!ret && msg.type == GPUCR_FILE && !early) {
		/* A dma-buf of a KFD: everyone who waits for another's has restored its own. */
		early_id = msg.id;
		ret = restore_ext_file(early_id);
		if (ret < 0)
			return ret;
		early = fdstore_add(ret) + 1;
		close(ret);
		return early > 0 ? restore_ext_file(id) : fail("/dev/kfd cannot be stored");
	}
	/* -ENOTSUP would let CRIU ask the next plugin. */
	return ret == -ENOENT ? -ENOTSUP : ret;
}

static int compare(const void *key, const void *element)
{
	const struct gpucr_range *k = key, *r = element;

	if (k->minor != r->minor)
		return k->minor < r->minor ? -1 : 1;
	if (k->offset < r->offset)
		return -1;
	return k->offset - r->offset >= r->size;
}

/* The mapping of an object that the KFD does not know. */
static int map_object(uint32_t minor, uint64_t old_offset, uint64_t *new_offset, int *fd)
{
	struct gpucr_msg msg = { .type = GPUCR_MAPPING, .minor = minor, .size = old_offset };
	int sock = helper_attach(), ret;

	if (sock < 0)
		return sock;
	ret = helper_send(sock, &msg, NULL, 0);
	if (!ret)
		ret = helper_answer(sock, &msg, fd);
	close(sock);
	if (ret)
		return ret;
	*new_offset = msg.size;
	return *fd < 0 ? -EIO : 1;
}

int update_vma_map(const char *path, uint64_t addr, uint64_t old_offset, uint64_t *new_offset, int *fd)
{
	const char *render = strstr(path, "/dri/renderD"), *name = strrchr(path, '/');
	struct gpucr_range key = { .offset = old_offset };
	const struct kfd_bo *bo;
	const struct gpucr_range *r;
	int ret;

	*fd = -1;
	if (!render && (!name || strcmp(name, "/kfd")))
		return -ENOTSUP;
	if (render)
		key.minor = atoi(render + strlen("/dri/renderD"));
	r = num_ranges ? bsearch(&key, ranges, num_ranges, sizeof(*ranges), compare) : NULL;
	if (!r) {
		if (!render)
			return 0; /* events: the same offset in every process */
		ret = map_object(key.minor, old_offset, new_offset, fd);
		if (ret != -ENOENT)
			return ret;
		say(LOG_ERROR, "Error: the mapping of %s at %#llx belongs to no buffer object of the process (offset %#llx)",
		    path, (unsigned long long)addr, (unsigned long long)old_offset);
		return -ENXIO;
	}
	bo = &bos[r->bo];
	*new_offset = bo->restored_offset + (old_offset - r->offset);
	if (!render)
		return 1;
	for (uint32_t i = 0; i < num_gpus; i++)
		if (gpus[i].user_gpu_id == bo->gpu_id)
			*fd = node(-1, gpus[i].pad);
	return *fd < 0 ? fail("no render node for buffer object %u", r->bo) : 1;
}

/*
 * With VRAM on demand (GPUCR_VRAM=lazy) a process may run before the driver's
 * RESUME: its queues stand still since RESTORE, until the helper issues it.
 */
int resume_devices_late(int pid)
{
	struct kfd_criu_args args = { .pid = pid, .op = KFD_RESUME };
	struct gpucr_msg msg = { .type = GPUCR_RESUME, .pid = pid };
	bool lazy;
	int fd, ret, tries;

	exitkill_set(pid);
	ret = failed ? -EIO : server_gate(pid, &msg);
	if (ret > 0)
		ret = helper_ask(&msg);
	if (ret == -ENOENT)
		return -ENOTSUP;
	if (!ret && !msg.id) {
		fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
		ret = fd < 0 ? -errno : patient_ioctl(fd, KFD_IOC_CRIU_OP, &args, &tries);
		if (ret) {
			snprintf(msg.text, sizeof(msg.text), "RESUME of process %d: %s", pid, strerror(-ret));
			say(LOG_ERROR, "Error: %s", msg.text);
		}
		if (fd >= 0)
			close(fd);
	}
	if (!ret) {
		if (!msg.count)
			exitkill_clear();
		/* When this is so of all, the helper leaves them alone, should CRIU end. */
		lazy = msg.id;
		msg = (struct gpucr_msg){ .type = GPUCR_RESUMED, .pid = pid };
		ret = helper_tell(&msg, NULL, 0);
		if (ret && !lazy && helper_gone()) {
			say(LOG_WARN, "gpucr-fs plugin-helper has ended; process %d is complete without it", pid);
			ret = 0;
		}
		server_resumed(pid);
	}
	if (ret) {
		say(LOG_ERROR, "Error: process %d is killed: its GPU state is not complete", pid);
		/* CRIU will say that the process is gone, and no more. */
		msg.type = GPUCR_RESUMED;
		msg.pid = pid;
		msg.status = ret;
		if (!failed)
			helper_tell(&msg, NULL, 0);
		kill(pid, SIGKILL);
		failed = true;
	}
	return ret;
}
