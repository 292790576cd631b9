#define _GNU_SOURCE
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/kfd_ioctl.h>

#define RW KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
#define SCRATCH (64 * 1024)
#define SHARED_SIZE (256 * 1024)
#define SHARED_SEED 0x5ba3ed0000ull

/* The generator of the pattern kernel, and the weights of the hash kernel. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/*
 * A BO whose word i holds mix(seed + i) + delta. Its hash is then known without
 * touching it: base + delta * weights, sums over the words of mix(seed + i) and
 * of 1, each times the hash kernel's odd weights.
 */
struct item {
	struct bo bo;
	uint64_t seed, delta;
	uint64_t base, weights;
	struct gpu *peer; /* reads it too */
	bool constant;
};

static void item_expect(struct item *it)
{
	it->base = it->weights = 0;
	for (uint64_t i = 0; i < it->bo.size / 8; i++) {
		uint64_t w = mix(i) | 1;

		it->base += mix(it->seed + i) * w;
		it->weights += w;
	}
}

static uint64_t item_hash(const struct item *it)
{
	return it->base + it->delta * it->weights;
}

static void check(struct device *dev, struct gpu *g, const struct item *it, int n, const char *when)
{
	uint64_t got = gpu_hash(dev, g, it->bo.va, it->bo.size);

	if (got != item_hash(it))
		die("bo %d of %llu bytes on gpu %d: hash %#llx, expected %#llx, %s", n, (unsigned long long)it->bo.size,
		    g->index, (unsigned long long)got, (unsigned long long)item_hash(it), when);
}

/* Compares words that the CPU sees: all of a small range, or some. */
static void check_words(const struct item *it, int n, const uint64_t *words, uint64_t count, uint64_t step,
	const char *where)
{
	for (uint64_t i = 0; i < count; i += step)
		if (words[i] != mix(it->seed + i) + it->delta)
			die("bo %d: word %llu is %#llx, expected %#llx, %s", n, (unsigned long long)i,
			    (unsigned long long)words[i], (unsigned long long)(mix(it->seed + i) + it->delta), where);
}

/* One step for a BO: is it as it was, change it, is it as it must be. */
static void tick(struct device *dev, struct item *it, int n, struct bo *scratch)
{
	struct gpu *g = it->bo.gpu;
	uint64_t part = it->bo.size < SCRATCH ? it->bo.size : SCRATCH;
	uint64_t step = it->bo.size / 8 / 512;

	check(dev, g, it, n, "before the change");
	if (!it->constant) {
		uint64_t add = mix(it->delta + n) | 1;

		gpu_run(dev, g, K_ADD, it->bo.va, NULL, it->bo.size, add);
		it->delta += add;
		check(dev, g, it, n, "after the change");
	}
	if (it->peer)
		check(dev, it->peer, it, n, "as the peer reads it");
	if (it->bo.cpu)
		check_words(it, n, it->bo.va, it->bo.size / 8, step ? step : 1, "as the cpu reads it");
	memset(scratch[g->index].va, 0, part);
	gpu_sdma_copy(dev, g, scratch[g->index].va, it->bo.va, part);
	check_words(it, n, scratch[g->index].va, part / 8, 1, "as sdma copied it");
}

/* Sizes run through powers of two from a page to the maximum, with an odd page
 * here and there. */
static uint64_t item_size(const struct config *cfg, int i)
{
	uint64_t size = PAGE;

	for (int k = i % 24; k && size * 2 <= cfg->max_bo; k--)
		size *= 2;
	return i % 5 == 3 && size > PAGE ? size - PAGE : size;
}

static void make_item(struct device *dev, const struct config *cfg, int index, int i, struct item *it)
{
	static const struct {
		uint32_t flags;
		bool cpu;
	} kinds[] = {
		{ KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW, false },
		{ KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC, true },
		{ KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, true },
		{ KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW, false },
		{ KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | RW, true },
		{ KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, false },
	};
	int kind = i % (sizeof(kinds) / sizeof(kinds[0]));
	struct gpu *g = &dev->gpus[i % dev->num_gpus];
	bool big = cfg->big_bo && i < dev->num_gpus;

	if (big)
		kind = 0;
	memset(it, 0, sizeof(*it));
	bo_alloc(dev, g, big ? cfg->big_bo : item_size(cfg, i), kinds[kind].flags, kinds[kind].cpu, &it->bo);
	it->seed = mix(index * 1000 + i);
	gpu_run(dev, g, K_PATTERN, it->bo.va, NULL, it->bo.size, it->seed);
	if (i % 7 == 0 && dev->num_gpus > 1) {
		it->peer = &dev->gpus[(i + 1) % dev->num_gpus];
		bo_map_peer(dev, &it->bo, it->peer);
	}
	item_expect(it);
}

static int socks[MAX_PROCS][2];

void share_prepare(const struct config *cfg)
{
	for (int i = 1; i < cfg->procs; i++)
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, socks[i]))
			die("socketpair: %s", strerror(errno));
}

void share_close(void)
{
	for (int i = 1; i < MAX_PROCS && socks[i][0]; i++) {
		close(socks[i][0]);
		close(socks[i][1]);
	}
}

void send_fd(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	if (sendmsg(sock, &msg, 0) != 1)
		die("send a dmabuf: %s", strerror(errno));
}

int recv_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&msg))
		die("receive a dmabuf: %s", strerror(errno));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return fd;
}

void sync_byte(int sock, bool send)
{
	char byte = 0;

	if ((send ? write(sock, &byte, 1) : read(sock, &byte, 1)) != 1)
		die("another process went away: %s", strerror(errno));
}

/*
 * Process 0 exports one BO, everybody imports it, then process 0 fills it: who
 * sees the pattern shares the memory. From then on it is constant, since a
 * restore gives every process a BO of its own (the KFD's CRIU interface does
 * not know who shares what).
 */
static void share(struct device *dev, const struct config *cfg, int index, struct item *it)
{
	struct gpu *g = &dev->gpus[0];

	memset(it, 0, sizeof(*it));
	it->seed = SHARED_SEED;
	it->constant = true;
	if (index) {
		int fd = recv_fd(socks[index][1]);

		bo_import(dev, g, fd, SHARED_SIZE, &it->bo);
		close(fd);
		sync_byte(socks[index][1], true);
		sync_byte(socks[index][1], false);
	} else {
		int fd;

		bo_alloc(dev, g, SHARED_SIZE, KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW, false, &it->bo);
		fd = bo_export(dev, &it->bo);
		for (int i = 1; i < cfg->procs; i++) {
			send_fd(socks[i][0], fd);
			sync_byte(socks[i][0], false);
		}
		close(fd);
		gpu_run(dev, g, K_PATTERN, it->bo.va, NULL, it->bo.size, it->seed);
		for (int i = 1; i < cfg->procs; i++)
			sync_byte(socks[i][0], true);
	}
	item_expect(it);
}

static int sock_of(int index, int end)
{
	return socks[index][end];
}

#define MEMORY_SEED 0x3e30000000ull
#define MEMORY_CHECKS 64 /* words in a tick */

static uint64_t *memory_make(uint64_t size)
{
	uint64_t *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		die("memory of %llu bytes: %s", (unsigned long long)size, strerror(errno));
	for (uint64_t i = 0; i < size / 8; i++)
		m[i] = mix(MEMORY_SEED + i);
	return m;
}

static void memory_check(const uint64_t *m, uint64_t size, long t)
{
	for (int k = 0; k < MEMORY_CHECKS; k++) {
		uint64_t i = mix(t * MEMORY_CHECKS + k) % (size / 8);

		if (m[i] != mix(MEMORY_SEED + i))
			die("memory: word %llu is %#llx, expected %#llx", (unsigned long long)i, (unsigned long long)m[i],
			    (unsigned long long)mix(MEMORY_SEED + i));
	}
}

#define CPU_SEED 0xc9000000ull

/* VRAM that the CPU alone works on: in pass p word i goes from mix(seed + i) + p to one more. */
struct cpu_work {
	uint64_t *words, count;
	int fd;
};

static void *cpu_thread(void *arg)
{
	const struct cpu_work *w = arg;

	for (uint64_t p = 0;; p++) {
		char line[32];

		for (uint64_t i = 0; i < w->count; i++) {
			uint64_t want = mix(CPU_SEED + i) + p, got = w->words[i];

			if (got != want)
				die("vram that the cpu works on: word %llu is %#llx in pass %llu, expected %#llx",
					(unsigned long long)i,
				    (unsigned long long)got, (unsigned long long)p, (unsigned long long)want);
			w->words[i] = want + 1;
		}
		snprintf(line, sizeof(line), "pass %20llu\n", (unsigned long long)p);
		if (pwrite(w->fd, line, strlen(line), 0) < 0)
			die("count passes: %s", strerror(errno));
	}
	return NULL;
}

static void cpu_start(struct device *dev, const struct config *cfg, int index)
{
	static struct cpu_work w;
	static struct bo bo;
	char path[4096];
	pthread_t thread;

	bo_alloc(dev, &dev->gpus[0], cfg->cpu_bo, KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC, true,
		&bo);
	w.words = bo.va;
	w.count = cfg->cpu_bo / 8;
	for (uint64_t i = 0; i < w.count; i++)
		w.words[i] = mix(CPU_SEED + i);
	snprintf(path, sizeof(path), "%s/cpu.%d", cfg->dir, index);
	w.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (w.fd < 0 || pthread_create(&thread, NULL, cpu_thread, &w))
		die("a thread for vram that the cpu works on: %s", strerror(errno));
}

static void *late;

static void map_late(int sig)
{
	(void)sig;
	if (mprotect(late, PAGE, PROT_READ))
		_exit(1);
}

static void map_late_start(const struct item *items, int n)
{
	const struct bo *bo = &items[0].bo;

	for (int i = 0; i < n; i++)
		if (items[i].bo.gpu->index == 0 && items[i].bo.size > bo->size)
			bo = &items[i].bo;
	late = mmap(NULL, bo->size, PROT_NONE, MAP_PRIVATE, bo->gpu->drm_fd, bo->mmap_offset);
	if (late == MAP_FAILED)
		die("map a bo for nobody: %s", strerror(errno));
	signal(SIGUSR1, map_late);
}

void work(const struct config *cfg, int index)
{
	uint64_t *memory = NULL;

	int count = cfg->bos + (cfg->procs > 1 ? 1 : 0);
	struct item *items = calloc(count, sizeof(*items));
	struct bo scratch[MAX_GPUS];
	static struct device dev;
	char line[STATUS_LEN];

	if (!items)
		die("out of memory");
	if (cfg->memory)
		memory = memory_make(cfg->memory);
	device_open(&dev, cfg->gpus, cfg->own_event_page);
	for (int i = 0; i < dev.num_gpus; i++)
		bo_alloc(&dev, &dev.gpus[i], SCRATCH, KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, true, &scratch[i]);
	for (int i = 0; i < cfg->bos; i++)
		make_item(&dev, cfg, index, i, &items[i]);
	if (cfg->procs > 1)
		share(&dev, cfg, index, &items[cfg->bos]);
	if (cfg->render_bo)
		objects_make(&dev, cfg, index, sock_of);
	share_close();
	if (cfg->map_late)
		map_late_start(items, cfg->bos);
	if (cfg->keep_dmabuf && !cfg->render_bo)
		bo_export(&dev, &items[0].bo);
	if (cfg->cpu_bo)
		cpu_start(&dev, cfg, index);
	for (long t = 0; !cfg->ticks || t < cfg->ticks; t++) {
		tick(&dev, &items[t % count], t % count, scratch);
		if (cfg->render_bo)
			objects_tick(&dev, cfg, index, t + 1);
		if (memory)
			memory_check(memory, cfg->memory, t);
		snprintf(line, sizeof(line), "tick %ld round %ld ok", t + 1, (t + 1) / count);
		status_write(line);
		if (cfg->interval_ms)
			nanosleep(&(struct timespec){ cfg->interval_ms / 1000, cfg->interval_ms % 1000 * 1000000 }, NULL);
	}
	free(items);
}
