/*
 * A libcuda.so.1 without a GPU, for tests: the driver's checkpoint interface and as much beside it as they need.
 *
 * VRAM is a file of each process and GPU in $CUDASIM_DIR. While a process has GPUs it also holds a device open that
 * CRIU cannot dump, as with the real driver, and has another mapped. Both are $CUDASIM_DEVICE and $CUDASIM_MAPPED.
 * Checkpoint copies the files into memory of the process, removes them and gives the devices up; restore does the
 * reverse. What is asked of another process goes to a thread there, which cuInit starts, over a pair of sockets of that
 * process: the asker takes a copy of its descriptor ASK_FD. Nothing of it has a name, so that several copies of a
 * restored process can be there at once.
 *
 * $CUDASIM_GPUS, 1 when not set, is how many GPUs there are. $CUDASIM_HOST, 0 when not set, is part of their UUIDs:
 * another host has other GPUs. $CUDA_VISIBLE_DEVICES, UUIDs, hides all others from who lists them.
 */
#define _GNU_SOURCE
#include "cudasim.h"
#include "ask.h"
#include "hazards.h"
#include "results.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { OP_LOCK, OP_CHECKPOINT, OP_RESTORE, OP_UNLOCK, OP_STATE, OPS };

static const char *op_names[OPS] = {"lock", "checkpoint", "restore", "unlock", "state"};

#define THREAD_NAME "cudasim-restore"

enum { MAX_GPUS = 16, MAX_MEMS = 256, MAX_COPIES = 64, CHUNK = 1 << 20 };

struct mem {
	int dev;
	uint64_t offset, size;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int state = RUNNING, working, current, fail_op = -1, fail_result, stall_op = -1, stall_ms;
static bool ready, serving;
static struct mem mems[MAX_MEMS];
static int mem_count;
static struct gpu {
	unsigned char uuid[16];
	int fd;        /* its VRAM, -1 while there is none */
	char path[256];
	uint64_t size; /* of what is allocated */
	void *saved;   /* while checkpointed */
} gpus[MAX_GPUS];
static int device_fd = -1;
enum { MAPPINGS = 3, PAGE = 4096 };
static void *mapped[MAPPINGS];
static bool broken; /* a restore has failed */

static int from_env(const char *name, int otherwise)
{
	const char *v = getenv(name);
	return v ? atoi(v) : otherwise;
}

static const char *from_env_text(const char *name, const char *otherwise)
{
	const char *v = getenv(name);
	return v ? v : otherwise;
}

static int gpu_count(void)
{
	int n = from_env("CUDASIM_GPUS", 1);
	return n < 0 ? 0 : n > MAX_GPUS ? MAX_GPUS : n;
}

static void uuid_of(unsigned char uuid[16], int dev)
{
	memset(uuid, 0, 16);
	memcpy(uuid, "cudasim", 7);
	uuid[14] = (unsigned char)from_env("CUDASIM_HOST", 0);
	uuid[15] = (unsigned char)dev;
}

/* open_vram makes a file that no other process has, as a copy of this one may. */
static int open_vram(char *path, size_t size, int dev)
{
	const char *dir = getenv("CUDASIM_DIR");
	int fd = -1;
	for (int copy = 0; copy < MAX_COPIES && fd < 0; copy++) {
		snprintf(path, size, copy ? "%s/vram.%d.%d.%d" : "%s/vram.%d.%d", dir ? dir : "/tmp", (int)getpid(), dev, copy);
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	}
	return fd;
}

static bool all_io(bool write, int fd, void *buf, size_t size, off_t at)
{
	while (size) {
		ssize_t n = write ? pwrite(fd, buf, size, at) : pread(fd, buf, size, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		buf = (char *)buf + n;
		size -= (size_t)n;
		at += n;
	}
	return true;
}

/* map_device maps the second device a few times, not side by side. */
static bool map_device(void)
{
	const char *path = getenv("CUDASIM_MAPPED");
	if (!path || mapped[0])
		return true;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < MAPPINGS; i++) {
		char *room = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mapped[i] = room == MAP_FAILED ? MAP_FAILED : mmap(room, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
		if (mapped[i] == MAP_FAILED)
			return false;
	}
	return close(fd) == 0;
}

static void unmap_device(void)
{
	for (int i = 0; i < MAPPINGS; i++) {
		if (mapped[i])
			munmap(mapped[i], 2 * PAGE);
		mapped[i] = NULL;
	}
}

/* attach opens the device and the VRAM of GPU g, which lies on the machine's GPU dev. */
static bool attach(int g, int dev)
{
	if (device_fd < 0)
		device_fd = open(from_env_text("CUDASIM_DEVICE", "/dev/fuse"), O_RDWR | O_CLOEXEC);
	gpus[g].fd = open_vram(gpus[g].path, sizeof gpus[g].path, dev);
	if (device_fd < 0 || gpus[g].fd < 0 || !map_device())
		return false;
	uuid_of(gpus[g].uuid, dev);
	return ftruncate(gpus[g].fd, (off_t)gpus[g].size) == 0;
}

static int do_checkpoint(void)
{
	for (int g = 0; g < MAX_GPUS; g++) {
		struct gpu *p = &gpus[g];
		if (p->fd < 0)
			continue;
		if (p->size) {
			p->saved = mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
			if (p->saved == MAP_FAILED)
				return OUT_OF_MEMORY;
			if (!all_io(false, p->fd, p->saved, p->size, 0))
				return OS_ERROR;
		}
		close(p->fd);
		p->fd = -1;
		unlink(p->path);
	}
	if (device_fd >= 0)
		close(device_fd);
	device_fd = -1;
	unmap_device();
	hazards_checkpointed();
	return SUCCESS;
}

static int find_gpu(const unsigned char uuid[16])
{
	for (int dev = 0; dev < gpu_count(); dev++) {
		unsigned char u[16];
		uuid_of(u, dev);
		if (!memcmp(u, uuid, 16))
			return dev;
	}
	return -1;
}

static int do_restore(const struct message *m)
{
	if (broken)
		return OS_ERROR;
	if (!pin_registered() || !hazards_restored()) {
		broken = true;
		return INVALID_VALUE;
	}
	for (int g = 0; g < MAX_GPUS; g++) {
		struct gpu *p = &gpus[g];
		if (!p->saved)
			continue;
		const unsigned char *want = p->uuid;
		for (uint32_t i = 0; i < m->count; i++)
			if (!memcmp(m->pairs[i].from, p->uuid, 16))
				want = m->pairs[i].to;
		int dev = find_gpu(want);
		if (dev < 0)
			return INVALID_DEVICE;
		if (!attach(g, dev) || !all_io(true, p->fd, p->saved, p->size, 0))
			return OS_ERROR;
		munmap(p->saved, p->size);
		p->saved = NULL;
	}
	return SUCCESS;
}

static int do_lock(uint32_t timeout_ms)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += timeout_ms / 1000;
	end.tv_nsec += (timeout_ms % 1000) * 1000000L;
	if (end.tv_nsec >= 1000000000L) {
		end.tv_sec++;
		end.tv_nsec -= 1000000000L;
	}
	state = LOCKED; /* holds new calls back while the old ones end */
	while (working)
		if (timeout_ms ? pthread_cond_timedwait(&changed, &mu, &end) == ETIMEDOUT : pthread_cond_wait(&changed, &mu)) {
			state = RUNNING;
			pthread_cond_broadcast(&changed);
			return NOT_READY;
		}
	return SUCCESS;
}

/* stall tells by a file that an action has begun, and waits. */
static void stall(const char *action)
{
	const char *dir = getenv("CUDASIM_DIR");
	char path[4096];
	snprintf(path, sizeof path, "%s/stalls.%s.%d", dir ? dir : "/tmp", action, (int)getpid());
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	usleep((useconds_t)stall_ms * 1000);
	unlink(path);
}

static int act(const struct message *m)
{
	static const int before[] = {RUNNING, LOCKED, CHECKPOINTED, LOCKED};
	static const int after[] = {LOCKED, CHECKPOINTED, LOCKED, RUNNING};
	if (m->op == OP_STATE)
		return SUCCESS;
	if (m->op >= OPS)
		return INVALID_VALUE;
	if (stall_op == (int)m->op) {
		stall_op = -1;
		stall(op_names[m->op]);
	}
	if (fail_op == (int)m->op) {
		fail_op = -1;
		return fail_result;
	}
	if (state != before[m->op])
		return ILLEGAL_STATE;
	int r = m->op == OP_LOCK ? do_lock(m->timeout_ms)
		: m->op == OP_CHECKPOINT ? do_checkpoint()
		: m->op == OP_RESTORE ? do_restore(m)
		: SUCCESS;
	if (r == SUCCESS)
		state = after[m->op];
	pthread_cond_broadcast(&changed);
	return r;
}

static void *serve(void *arg)
{
	pthread_mutex_lock(&mu);
	prctl(PR_SET_NAME, THREAD_NAME);
	serving = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	for (;;) {
		struct message m;
		int fd = ask_next(&m);
		if (fd < 0)
			continue;
		pthread_mutex_lock(&mu);
		struct answer a = {.result = act(&m)};
		a.value = state;
		pthread_mutex_unlock(&mu);
		ask_answer(fd, &a);
	}
	return arg;
}

static int ask(int pid, struct message *m, int *value)
{
	if (!ready)
		return NOT_INITIALIZED;
	struct answer a = {0};
	if (!ask_process(pid, m, &a)) /* a process that is there and has not initialised CUDA is known as such */
		return !errno ? UNKNOWN : kill(pid, 0) == 0 ? NOT_INITIALIZED : INVALID_VALUE;
	if (value)
		*value = a.value;
	return a.result;
}

/*
 * forked leaves a child the device and its mappings, as the real driver does, and neither the files that VRAM is here
 * nor the sockets.
 */
static void forked(void)
{
	ask_end();
	for (int g = 0; g < MAX_GPUS; g++)
		if (gpus[g].fd >= 0)
			close(gpus[g].fd);
}

/*
 * shown gives the GPU with an ordinal among those that this process is shown, or how many these are:
 * $CUDA_VISIBLE_DEVICES names one of them by its UUID.
 */
static int shown(int ordinal)
{
	const char *only = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;
	for (int dev = 0; dev < gpu_count(); dev++) {
		unsigned char u[16];
		char name[37], *at = name;
		uuid_of(u, dev);
		for (int i = 0; i < 16; i++)
			at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
		if (only && *only && !strstr(only, name))
			continue;
		if (n++ == ordinal)
			return dev;
	}
	return ordinal < 0 ? n : -1;
}

/* The driver's calls. */

int cuInit(unsigned flags)
{
	if (flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&mu);
	if (ready) {
		pthread_mutex_unlock(&mu);
		return SUCCESS;
	}
	pthread_t thread;
	for (int g = 0; g < MAX_GPUS; g++)
		gpus[g].fd = -1;
	pthread_atfork(NULL, NULL, forked);
	int r = gpu_count() == 0 ? NO_DEVICE
		: !ask_begin() || pthread_create(&thread, NULL, serve, NULL) ? OS_ERROR
		: SUCCESS;
	if (r == SUCCESS && !hazards_begin())
		r = OS_ERROR;
	while (r == SUCCESS && !serving)
		pthread_cond_wait(&changed, &mu);
	ready = r == SUCCESS;
	pthread_mutex_unlock(&mu);
	return r;
}

int cuDriverGetVersion(int *version)
{
	*version = from_env("CUDASIM_VERSION", 13000);
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	*count = shown(-1);
	return ready ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *dev, int ordinal)
{
	*dev = ordinal < 0 ? -1 : shown(ordinal);
	return *dev < 0 ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int dev)
{
	uuid_of(uuid, dev);
	return SUCCESS;
}

int cuDeviceGetName(char *name, int size, int dev)
{
	(void)dev;
	snprintf(name, (size_t)size, "Simulated GPU");
	return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int dev)
{
	(void)dev;
	*bytes = (size_t)1 << 30;
	return SUCCESS;
}

/* enter waits until calls are let in; leave ends what enter began. */
static void enter(void)
{
	pthread_mutex_lock(&mu);
	while (state != RUNNING)
		pthread_cond_wait(&changed, &mu);
	working++;
	pthread_mutex_unlock(&mu);
}

static void leave(void)
{
	pthread_mutex_lock(&mu);
	working--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

int cudasimDevice(int dev)
{
	current = dev;
	return dev >= 0 && dev < gpu_count() ? SUCCESS : INVALID_DEVICE;
}

int cuMemAlloc_v2(uint64_t *ptr, size_t size)
{
	if (!ready)
		return NOT_INITIALIZED;
	enter();
	int r = OUT_OF_MEMORY;
	struct gpu *g = &gpus[current];
	if (mem_count < MAX_MEMS && (g->fd >= 0 || attach(current, current))) {
		mems[mem_count] = (struct mem){.dev = current, .offset = g->size, .size = size};
		if (ftruncate(g->fd, (off_t)(g->size + size)) == 0) {
			g->size += size;
			*ptr = (uint64_t)++mem_count << 40;
			r = SUCCESS;
		}
	}
	leave();
	return r;
}

static int copy(bool write, uint64_t ptr, void *host, size_t size)
{
	if (!ready)
		return NOT_INITIALIZED;
	uint64_t i = (ptr >> 40) - 1, at = ptr & (((uint64_t)1 << 40) - 1);
	enter();
	int r = INVALID_VALUE;
	if (i < (uint64_t)mem_count && at + size <= mems[i].size)
		r = all_io(write, gpus[mems[i].dev].fd, host, size, (off_t)(mems[i].offset + at)) ? SUCCESS : OS_ERROR;
	leave();
	return r;
}

int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t size)
{
	return copy(true, dst, (void *)(uintptr_t)src, size);
}
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size) { return copy(false, src, dst, size); }

static void *work(void *ms)
{
	struct timespec left = {.tv_sec = (intptr_t)ms / 1000, .tv_nsec = ((intptr_t)ms % 1000) * 1000000L};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	leave();
	return NULL;
}

int cudasimWork(int ms)
{
	pthread_t t;
	enter();
	if (pthread_create(&t, NULL, work, (void *)(intptr_t)ms)) {
		leave();
		return OS_ERROR;
	}
	pthread_detach(t);
	return SUCCESS;
}

static int set_next(const char *action, int *op, int *how, int value)
{
	for (int i = 0; i < OPS; i++)
		if (!strcmp(op_names[i], action)) {
			pthread_mutex_lock(&mu);
			*op = i;
			*how = value;
			pthread_mutex_unlock(&mu);
			return SUCCESS;
		}
	return INVALID_VALUE;
}

int cudasimFail(const char *action, int result) { return set_next(action, &fail_op, &fail_result, result); }
int cudasimStall(const char *action, int ms) { return set_next(action, &stall_op, &stall_ms, ms); }

/* The checkpoint interface. Arguments are laid out as in cuda.h 13.0. */

static int simple(int pid, uint32_t op, uint32_t timeout_ms)
{
	struct message m = {.op = op, .timeout_ms = timeout_ms};
	return ask(pid, &m, NULL);
}

int cuCheckpointProcessLock(int pid, const unsigned *args) { return simple(pid, OP_LOCK, args ? args[0] : 0); }
int cuCheckpointProcessCheckpoint(int pid, const void *args)
{
	return args ? INVALID_VALUE : simple(pid, OP_CHECKPOINT, 0);
}
int cuCheckpointProcessUnlock(int pid, const void *args) { return args ? INVALID_VALUE : simple(pid, OP_UNLOCK, 0); }

int cuCheckpointProcessRestore(int pid, const void *args)
{
	const struct {
		const struct pair *pairs;
		unsigned count;
		char zero[44];
		uint64_t zero1;
	} *a = args;
	struct message m = {.op = OP_RESTORE};
	if (a) {
		static const char zeros[44];
		if (a->count > MAX_PAIRS || a->zero1 || memcmp(a->zero, zeros, sizeof zeros))
			return INVALID_VALUE;
		m.count = a->count;
		memcpy(m.pairs, a->pairs, a->count * sizeof *a->pairs);
	}
	return ask(pid, &m, NULL);
}

int cuCheckpointProcessGetState(int pid, int *out)
{
	struct message m = {.op = OP_STATE};
	return ask(pid, &m, out);
}

/* The thread is found by its name: CRIU's plugin asks while all threads stand still. */
int cuCheckpointProcessGetRestoreThreadId(int pid, int *out)
{
	char path[64];
	int r = ready ? INVALID_VALUE : NOT_INITIALIZED;
	snprintf(path, sizeof path, "/proc/%d/task", process_of(pid));
	DIR *tasks = ready ? opendir(path) : NULL;
	for (struct dirent *d; tasks && r && (d = readdir(tasks));) {
		char comm[400], name[32] = "";
		snprintf(comm, sizeof comm, "%s/%s/comm", path, d->d_name);
		FILE *f = fopen(comm, "re");
		if (f && fgets(name, sizeof name, f) && !strcmp(name, THREAD_NAME "\n")) {
			*out = atoi(d->d_name);
			r = SUCCESS;
		}
		if (f)
			fclose(f);
	}
	if (tasks)
		closedir(tasks);
	return r;
}
