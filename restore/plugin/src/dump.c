/*
 * Dumping. The driver accepts PROCESS_INFO, CHECKPOINT and UNPAUSE from the
 * thread that traces the process, CRIU's own; what they return goes to the helper,
 * which writes the images.
 *
 * A process stays paused until CRIU is done with its memory, and until it is dead
 * where CRIU kills it next: nothing that its GPUs would do after the checkpoint may
 * be seen by others. CRIU calls no plugin after it has made up its mind (a
 * post-dump script that fails keeps the processes alive), so the helper unpauses what
 * outlives CRIU; also should CRIU be killed.
 */
#define _GNU_SOURCE
#include "kfd.h"
#include "plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Descriptors of /dev/kfd of paused processes. */
static int *paused;
static size_t num_paused;

static void unpause_all(void)
{
	while (num_paused) {
		struct kfd_criu_args args = { .op = KFD_UNPAUSE };
		int fd = paused[--num_paused];

		kfd_ioctl(fd, KFD_IOC_CRIU_OP, &args, "queues of a process stay paused: UNPAUSE");
		close(fd);
	}
	free(paused);
	paused = NULL;
}

void dump_done(int status)
{
	/* A CRIU that does not tell gets its processes back as they were. */
	const int *final_state = dlsym(RTLD_DEFAULT, "opts");

	if (!status && num_paused && helper_started() && final_state && *final_state == FINAL_DEAD &&
	    !helper_bye(status, num_paused)) {
		say(LOG_INFO, "%zu processes stay paused until CRIU has killed them", num_paused);
		while (num_paused)
			close(paused[--num_paused]);
	}
	unpause_all();
}

static bool is_kfd(const struct stat *st)
{
	struct stat kfd;

	return S_ISCHR(st->st_mode) && !stat("/dev/kfd", &kfd) && st->st_rdev == kfd.st_rdev;
}

static bool is_render_node(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && major(st->st_rdev) == DRM_MAJOR && minor(st->st_rdev) >= FIRST_RENDER_MINOR &&
	       minor(st->st_rdev) < FIRST_RENDER_MINOR + MAX_MINORS;
}

static int note_use(void)
{
	static bool noted;

	if (!noted && add_inventory_plugin("amdgpu_plugin"))
		return fail("the inventory does not take the plugin's name");
	noted = true;
	return 0;
}

int handle_device_vma(int fd, const struct stat *st)
{
	(void)fd;
	if (!is_kfd(st) && !is_render_node(st))
		return -ENOTSUP;
	return note_use();
}

/* Makes the shared memory for what CHECKPOINT returns. */
static int share(struct gpucr_msg *msg, char **mem)
{
	int fd = memfd_create("gpucr-checkpoint", MFD_CLOEXEC);

	msg->devices = 0;
	msg->bos = msg->num_devices * sizeof(struct kfd_device);
	msg->priv = msg->bos + msg->num_bos * sizeof(struct kfd_bo);
	msg->size = msg->priv + msg->priv_size;
	*mem = MAP_FAILED;
	if (fd >= 0 && !ftruncate(fd, msg->size))
		*mem = mmap(NULL, msg->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*mem != MAP_FAILED)
		return fd;
	say(LOG_ERROR, "Error: memory for %llu bytes of state: %s", (unsigned long long)msg->size, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -ENOMEM;
}

static int dump_kfd(int fd, int id)
{
	struct kfd_criu_args args = { .op = KFD_PROCESS_INFO };
	struct gpucr_msg pause = { .type = GPUCR_PAUSE }, msg = { .type = GPUCR_DUMP_KFD, .id = id };
	struct kfd_bo *bos;
	int ret, shared, *grown;
	uint64_t size;
	char *mem;

	/* Room to remember it, before it is paused. */
	grown = realloc(paused, (num_paused + 1) * sizeof(*paused));
	if (!grown)
		return -ENOMEM;
	paused = grown;
	paused[num_paused] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (paused[num_paused] < 0)
		return fail("dup: %s", strerror(errno));
	/* The helper unpauses it should CRIU be killed. */
	ret = helper_tell(&pause, &fd, 1);
	if (ret) {
		close(paused[num_paused]);
		return ret;
	}
	ret = kfd_ioctl(fd, KFD_IOC_CRIU_OP, &args, "PROCESS_INFO");
	if (ret) {
		close(paused[num_paused]);
		return ret;
	}
	num_paused++;

	msg.pid = args.pid;
	msg.num_devices = args.num_devices;
	msg.num_bos = args.num_bos;
	msg.num_objects = args.num_objects;
	msg.priv_size = args.priv_data_size;
	shared = share(&msg, &mem);
	if (shared < 0)
		return shared;
	size = msg.size;
	args.op = KFD_CHECKPOINT;
	args.devices = (uintptr_t)mem + msg.devices;
	args.bos = (uintptr_t)mem + msg.bos;
	args.priv_data = (uintptr_t)mem + msg.priv;
	bos = (void *)(mem + msg.bos);
	for (uint32_t i = 0; i < args.num_bos; i++)
		bos[i].dmabuf_fd = ~0u;
	ret = helper_tell(&msg, &shared, 1);
	if (!ret)
		ret = kfd_ioctl(fd, KFD_IOC_CRIU_OP, &args, "CHECKPOINT");
	if (!ret)
		ret = helper_tell_bos((const int32_t *)&bos->dmabuf_fd, sizeof(*bos), args.num_bos);
	if (!ret) {
		msg.type = GPUCR_DUMP_GO;
		ret = helper_ask(&msg);
	}
	for (uint32_t i = 0; i < args.num_bos; i++)
		if ((int)bos[i].dmabuf_fd >= 0)
			close(bos[i].dmabuf_fd);
	munmap(mem, size);
	close(shared);
	return ret;
}

int dump_ext_file(int fd, int id)
{
	struct gpucr_msg msg = { .type = GPUCR_DUMP_RENDER, .id = id };
	struct stat st;
	int ret;

	if (fstat(fd, &st))
		return fail("stat: %s", strerror(errno));
	if (!is_kfd(&st) && !is_render_node(&st) && !is_dmabuf(fd, &st))
		return -ENOTSUP;
	ret = helper_start(STAGE_DUMP);
	if (ret)
		return ret;
	if (is_kfd(&st)) {
		ret = dump_kfd(fd, id);
	} else if (is_render_node(&st)) {
		msg.minor = minor(st.st_rdev);
		ret = helper_ask_objects(&msg, fd);
	} else {
		msg.type = GPUCR_DUMP_DMABUF;
		ret = helper_ask_about(&msg, &fd, 1);
	}
	return ret ? ret : note_use();
}
