/*
 * The application's device layer: what a ROCm runtime does over /dev/kfd, in
 * plain ioctls. One struct gpu for each device; buffer objects (BOs) that have
 * the same address on the CPU and on the GPU; one AQL and one SDMA queue a GPU.
 */
#ifndef GPUAPP_GPU_H
#define GPUAPP_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096ull
#define MAX_GPUS 16

/* Kernels of the simulated GPU (kfdsim.KernelOp), arguments dst, src, n, value, out. */
enum kernel { K_FILL = 1, K_ADD, K_PATTERN, K_HASH, K_COPY, K_SLEEP, K_COUNT };

struct bo {
	struct gpu *gpu;
	uint64_t handle;
	uint64_t size;
	uint64_t mmap_offset;
	uint32_t flags;
	void *va; /* reserved always, readable by the CPU when cpu is set */
	bool cpu;
};

struct queue {
	uint32_t id;
	struct bo ring, ptrs; /* ptrs: write pointer at 0x38, read pointer at 0x80 */
	volatile uint64_t *doorbell;
	uint64_t next; /* packets (AQL) or bytes (SDMA) written */
};

/* A completion signal as the packet processor knows it (amd_signal_t). */
struct signal {
	int64_t kind;
	volatile int64_t value;
	uint64_t mailbox;
	uint32_t event, pad;
	uint64_t reserved[4];
};

struct gpu {
	int index;
	uint32_t id;
	int minor, drm_fd, gfx; /* gfx: generation */
	struct bo code, doorbells, mmio, page, eop; /* page: signals and kernel arguments */
	struct queue aql, sdma;
	struct signal *signal;
	volatile uint64_t *args, *out;
	volatile uint32_t *fence;
	uint32_t event;
	uint32_t fences;
};

struct device {
	int kfd;
	int num_gpus;
	struct gpu gpus[MAX_GPUS];
	struct bo events; /* the event page, when it is a BO */
};

/* Ends the process with a message; main.c notes it in the status file. */
void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

int retry_ioctl(int fd, unsigned long request, void *arg);

/* Opens the devices, at most max_gpus of them, and makes the queues. own_page
 * lets the driver make the event page, in place of a BO. */
void device_open(struct device *dev, int max_gpus, bool own_page);

/* Allocates a BO, with the address va or a fresh one, and maps it to its GPU;
 * into the CPU too when cpu is set. flags: one KFD_IOC_ALLOC_MEM_FLAGS_* kind
 * and more. */
void bo_alloc(struct device *dev, struct gpu *g, uint64_t size, uint32_t flags, bool cpu, struct bo *bo);
void bo_map_peer(struct device *dev, struct bo *bo, struct gpu *peer);

/* A dmabuf descriptor of a BO, and a BO of a dmabuf. */
int bo_export(struct device *dev, struct bo *bo);

/*
 * Objects of the render node, of which the KFD does not know: VRAM that is made there, or a dmabuf's. The GPU has them
 * at bo.va, and with cpu the CPU does.
 */
struct render {
	struct bo bo;
	uint32_t handle;
};

void render_make(struct gpu *g, uint64_t size, bool cpu, struct render *r);
void render_import(struct gpu *g, int fd, uint64_t size, struct render *r);
int render_export(struct gpu *g, const struct render *r);
void render_lookup(struct gpu *g, int fd, uint32_t *handle);
void render_close(struct gpu *g, struct render *r);
/* Memory of the process that the render node's GPU may use. */
void render_userptr(struct gpu *g, uint64_t size);
void bo_import(struct device *dev, struct gpu *g, int fd, uint64_t size, struct bo *bo);

/* Run to completion. gpu_hash returns the hash of n bytes. */
void gpu_run(struct device *dev, struct gpu *g, enum kernel op, void *dst, const void *src, uint64_t n, uint64_t value);
uint64_t gpu_hash(struct device *dev, struct gpu *g, const void *src, uint64_t n);
void gpu_sdma_copy(struct device *dev, struct gpu *g, void *dst, const void *src, uint64_t n);

#endif
