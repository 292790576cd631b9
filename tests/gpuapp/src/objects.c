/*
 * Objects of render nodes, and dma-bufs, in the shapes in which they are shared: process
 * 0 has an object, made on its render node or by the KFD, and gives the others a dma-buf,
 * which they import into their render nodes.
 *
 * Its first page is a talk: process 0 has its GPU write the number of a round in word 0,
 * the others read that through their mappings and have their GPUs write it in word
 * 8 + index. Who does not see the other's word has lost the sharing. The rest is a
 * pattern that all check.
 */
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kfd_ioctl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SEED 0x0b1ec7000000ull
#define PATIENCE 60 /* seconds */

static struct render object; /* process 0 with render_kfd has the BO alone */
static int dmabuf = -1;
static uint64_t expected;

static void *rest(void)
{
	return (char *)object.bo.va + PAGE;
}

void objects_make(struct device *dev, const struct config *cfg, int index, int sock_of(int, int))
{
	struct gpu *g = &dev->gpus[0];
	uint64_t size = cfg->render_bo + PAGE;
	struct bo copy;

	if (index) {
		dmabuf = recv_fd(sock_of(index, 1));
		render_import(g, dmabuf, size, &object);
		sync_byte(sock_of(index, 1), true);
	} else {
		if (cfg->render_kfd) {
			bo_alloc(dev, g, size, KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
				KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC, true, &object.bo);
			dmabuf = bo_export(dev, &object.bo);
		} else {
			render_make(g, size, true, &object);
			dmabuf = render_export(g, &object);
		}
		memset(object.bo.va, 0, PAGE);
		gpu_run(dev, g, K_PATTERN, rest(), NULL, cfg->render_bo, SEED);
		for (int i = 1; i < cfg->procs; i++) {
			send_fd(sock_of(i, 0), dmabuf);
			sync_byte(sock_of(i, 0), false);
		}
	}
	bo_alloc(dev, g, cfg->render_bo, KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, false, &copy);
	gpu_run(dev, g, K_PATTERN, copy.va, NULL, cfg->render_bo, SEED);
	expected = gpu_hash(dev, g, copy.va, cfg->render_bo);
	if (cfg->dmabuf_alone)
		render_close(g, &object);
	else if (!cfg->keep_dmabuf)
		close(dmabuf);
	if (cfg->render_userptr)
		render_userptr(g, PAGE);
}

static void check_rest(struct device *dev, const struct config *cfg, const char *which)
{
	uint64_t got = gpu_hash(dev, &dev->gpus[0], rest(), cfg->render_bo);

	if (got != expected)
		die("%s of the render node: hash %#llx, expected %#llx", which, (unsigned long long)got,
			(unsigned long long)expected);
}

void objects_tick(struct device *dev, const struct config *cfg, int index, uint64_t round)
{
	struct gpu *g = &dev->gpus[0];
	volatile uint64_t *word = object.bo.va;
	time_t late = time(NULL) + PATIENCE;

	if (cfg->dmabuf_alone || cfg->keep_dmabuf) {
		struct render again;
		uint32_t handle = object.handle;

		/* The object has one handle, if that is open. */
		if (cfg->dmabuf_alone) {
			render_import(g, dmabuf, cfg->render_bo + PAGE, &again);
			object.bo.va = again.bo.va;
			check_rest(dev, cfg, "the object of a dmabuf");
			render_close(g, &again);
			return;
		}
		if (!cfg->render_kfd || index) {
			render_lookup(g, dmabuf, &handle);
			if (handle != object.handle)
				die("the dmabuf is of handle %u, not of %u", handle, object.handle);
		}
	}
	check_rest(dev, cfg, "the object");
	if (index) {
		uint64_t seen = word[0];

		gpu_run(dev, g, K_FILL, (void *)&word[8 + index], NULL, 8, seen);
		if (word[8 + index] != seen)
			die("the object: word %d is %llu for the cpu, the gpu wrote %llu", 8 + index,
			    (unsigned long long)word[8 + index], (unsigned long long)seen);
		return;
	}
	gpu_run(dev, g, K_FILL, (void *)word, NULL, 8, round);
	for (int i = 1; i < cfg->procs; i++)
		while (word[8 + i] != round) {
			if (time(NULL) > late)
				die("process %d shares the object no more: it wrote %llu, not %llu", i, (unsigned long long)word[8 + i],
				    (unsigned long long)round);
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		}
}
