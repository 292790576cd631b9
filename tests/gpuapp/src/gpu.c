#define _GNU_SOURCE
#include "gpu.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/kfd_ioctl.h>

#include "kfdsim.h"

#define TOPOLOGY "/sys/class/kfd/kfd/topology/nodes"
#define DOORBELL_SLICE 8192
#define AQL_PACKETS 64
#define SDMA_RING 65536
#define SDMA_COPY_CPV (1u << 19) /* GFX12: the last dword counts */
#define EVENT_MS 60000 /* a restore may keep the queues still for as long as it waits for a successor of its daemon */
#define EVENT_PAGE (KFD_SIGNAL_EVENT_LIMIT * 8)

#define RW KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
#define VISIBLE (RW | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC)

#ifndef AMDKFD_IOC_EXPORT_DMABUF /* KFD 1.12 */
struct kfd_ioctl_export_dmabuf_args {
	__u64 handle;
	__u32 flags, dmabuf_fd;
};
#define AMDKFD_IOC_EXPORT_DMABUF AMDKFD_IOWR(0x24, struct kfd_ioctl_export_dmabuf_args)
#endif

int retry_ioctl(int fd, unsigned long request, void *arg)
{
	int ret;

	do
		ret = ioctl(fd, request, arg);
	while (ret < 0 && (errno == EINTR || errno == EAGAIN));
	return ret;
}

static void must(int fd, unsigned long request, void *arg, const char *what)
{
	if (retry_ioctl(fd, request, arg))
		die("%s: %s", what, strerror(errno));
}

static long read_number(const char *dir, const char *file, const char *key)
{
	char path[512], line[256];
	long val = -1;
	FILE *f;

	snprintf(path, sizeof(path), TOPOLOGY "/%s/%s", dir, file);
	f = fopen(path, "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		char name[128];
		long v;

		if (!key && sscanf(line, "%ld", &v) == 1)
			val = v;
		else if (key && sscanf(line, "%127s %ld", name, &v) == 2 && !strcmp(name, key))
			val = v;
	}
	fclose(f);
	return val;
}

static int by_number(const struct dirent **a, const struct dirent **b)
{
	return atoi((*a)->d_name) - atoi((*b)->d_name);
}

static void find_gpus(struct device *dev, int max_gpus)
{
	struct dirent **nodes;
	int n = scandir(TOPOLOGY, &nodes, NULL, by_number);

	if (n < 0)
		die("no topology at %s", TOPOLOGY);
	for (int i = 0; i < n; i++) {
		long id = nodes[i]->d_name[0] == '.' ? 0 : read_number(nodes[i]->d_name, "gpu_id", NULL);

		if (id > 0 && dev->num_gpus < max_gpus && dev->num_gpus < MAX_GPUS) {
			struct gpu *g = &dev->gpus[dev->num_gpus];

			g->index = dev->num_gpus++;
			g->id = id;
			g->minor = read_number(nodes[i]->d_name, "properties", "drm_render_minor");
			g->gfx = read_number(nodes[i]->d_name, "properties", "gfx_target_version") / 10000;
		}
		free(nodes[i]);
	}
	free(nodes);
	if (!dev->num_gpus)
		die("no gpu in the topology");
}

static void *reserve(uint64_t size)
{
	void *va = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (va == MAP_FAILED)
		die("reserve %llu bytes: %s", (unsigned long long)size, strerror(errno));
	return va;
}

static void map_to(struct device *dev, struct bo *bo, struct gpu *g)
{
	struct kfd_ioctl_map_memory_to_gpu_args args = {
		.handle = bo->handle,
		.device_ids_array_ptr = (uintptr_t)&g->id,
		.n_devices = 1,
	};

	must(dev->kfd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args, "map memory to gpu");
	if (args.n_success != 1)
		die("map memory to gpu: %u of 1 devices", args.n_success);
}

void bo_map_peer(struct device *dev, struct bo *bo, struct gpu *peer)
{
	map_to(dev, bo, peer);
}

void bo_alloc(struct device *dev, struct gpu *g, uint64_t size, uint32_t flags, bool cpu, struct bo *bo)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args = { .size = size, .gpu_id = g->id, .flags = flags };
	bool userptr = flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
	bool kfd_map = flags & (KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP);

	*bo = (struct bo){ .gpu = g, .size = size, .flags = flags, .cpu = cpu || userptr };
	if (userptr) {
		bo->va = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (bo->va == MAP_FAILED)
			die("memory for a userptr: %s", strerror(errno));
		args.mmap_offset = (uintptr_t)bo->va;
	} else {
		bo->va = reserve(size);
	}
	args.va_addr = (uintptr_t)bo->va;
	must(dev->kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &args, "allocate memory of gpu");
	bo->handle = args.handle;
	bo->mmap_offset = args.mmap_offset;
	map_to(dev, bo, g);
	if (cpu && !userptr) {
		void *at = mmap(bo->va, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				kfd_map ? dev->kfd : g->drm_fd, bo->mmap_offset);

		if (at != bo->va)
			die("map %llu bytes at %#llx: %s", (unsigned long long)size,
			    (unsigned long long)bo->mmap_offset, strerror(errno));
	}
}

int bo_export(struct device *dev, struct bo *bo)
{
	struct kfd_ioctl_export_dmabuf_args args = { .handle = bo->handle, .flags = O_CLOEXEC };
	int fd;

	must(dev->kfd, AMDKFD_IOC_EXPORT_DMABUF, &args, "export dmabuf");
	fd = kfdsim_install_fd(dev->kfd, args.dmabuf_fd, O_CLOEXEC);
	if (fd < 0)
		die("descriptor of a dmabuf: %s", strerror(errno));
	return fd;
}

/*
 * Gives an object of the render node a place for the GPU, where nothing else is, and with cpu one for the CPU there
 * too.
 */
static void render_map(struct gpu *g, struct render *r, bool cpu)
{
	/* struct drm_amdgpu_gem_va, union drm_amdgpu_gem_mmap */
	struct { uint32_t handle, pad, op, flags; uint64_t va, offset, size; } va = {
		.handle = r->handle, .op = 1, .flags = 2 | 4, .size = r->bo.size };
	union { uint32_t handle; uint64_t offset; } at = { .handle = r->handle };

	r->bo.gpu = g;
	r->bo.cpu = cpu;
	r->bo.va = reserve(r->bo.size);
	va.va = (uintptr_t)r->bo.va;
	must(g->drm_fd, _IOW('d', 0x48, va), &va, "map a bo of the render node");
	if (!cpu)
		return;
	must(g->drm_fd, _IOWR('d', 0x41, at), &at, "find a bo of the render node");
	if (mmap(r->bo.va, r->bo.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, g->drm_fd, at.offset) != r->bo.va)
		die("map a bo of the render node: %s", strerror(errno));
}

void render_make(struct gpu *g, uint64_t size, bool cpu, struct render *r)
{
	/* union drm_amdgpu_gem_create */
	union { struct { uint64_t size, alignment, domains, flags; }; uint32_t handle; } args = { { size, PAGE, 4, cpu } };

	*r = (struct render){ .bo.size = size };
	must(g->drm_fd, _IOWR('d', 0x40, args), &args, "make a bo on the render node");
	r->handle = args.handle;
	render_map(g, r, cpu);
}

struct prime {
	uint32_t handle, flags;
	int32_t fd;
};

void render_import(struct gpu *g, int fd, uint64_t size, struct render *r)
{
	struct prime args = { .fd = fd };

	*r = (struct render){ .bo.size = size };
	must(g->drm_fd, _IOWR('d', 0x2e, args), &args, "import a dmabuf into the render node");
	r->handle = args.handle;
	render_map(g, r, true);
}

int render_export(struct gpu *g, const struct render *r)
{
	struct prime args = { .handle = r->handle, .flags = O_CLOEXEC | O_RDWR };
	int fd;

	must(g->drm_fd, _IOWR('d', 0x2d, args), &args, "export a bo of the render node");
	fd = kfdsim_install_fd(g->drm_fd, args.fd, O_CLOEXEC);
	if (fd < 0)
		die("descriptor of a dmabuf: %s", strerror(errno));
	return fd;
}

void render_lookup(struct gpu *g, int fd, uint32_t *handle)
{
	struct prime args = { .fd = fd };

	must(g->drm_fd, _IOWR('d', 0x2e, args), &args, "look for a dmabuf's handle");
	*handle = args.handle;
}

void render_close(struct gpu *g, struct render *r)
{
	uint32_t args[2] = { r->handle };

	/* Unmap first: at RESUME the simulator looks for an open handle of whatever is mapped. */
	if (r->bo.cpu)
		munmap(r->bo.va, r->bo.size);
	must(g->drm_fd, _IOW('d', 0x09, args), args, "close a handle");
}

void render_userptr(struct gpu *g, uint64_t size)
{
	/* struct drm_amdgpu_gem_userptr; ANONONLY, VALIDATE, REGISTER */
	struct { uint64_t addr, size; uint32_t flags, handle; } args = { .size = size, .flags = 2 | 4 | 8 };

	args.addr = (uintptr_t)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(g->drm_fd, _IOWR('d', 0x51, args), &args, "register memory on the render node");
}

void bo_import(struct device *dev, struct gpu *g, int fd, uint64_t size, struct bo *bo)
{
	struct kfd_ioctl_get_dmabuf_info_args info = { .dmabuf_fd = fd };
	struct kfd_ioctl_import_dmabuf_args args = { .gpu_id = g->id, .dmabuf_fd = fd };

	must(dev->kfd, AMDKFD_IOC_GET_DMABUF_INFO, &info, "ask for a dmabuf's size");
	if (info.size != size)
		die("dmabuf of %llu bytes, expected %llu", (unsigned long long)info.size, (unsigned long long)size);
	*bo = (struct bo){ .gpu = g, .size = size, .va = reserve(size) };
	args.va_addr = (uintptr_t)bo->va;
	must(dev->kfd, AMDKFD_IOC_IMPORT_DMABUF, &args, "import dmabuf");
	bo->handle = args.handle;
	map_to(dev, bo, g);
}

static void make_queue(struct device *dev, struct gpu *g, struct queue *q, uint32_t type, uint64_t ring)
{
	struct kfd_ioctl_create_queue_args args = { .gpu_id = g->id, .queue_type = type, .queue_percentage = 100,
		.queue_priority = 7 };

	bo_alloc(dev, g, ring, KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE, true, &q->ring);
	bo_alloc(dev, g, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, true, &q->ptrs);
	if (type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
		for (uint64_t i = 0; i < ring; i += 64)
			*(uint16_t *)((char *)q->ring.va + i) = 1; /* no packet yet */
	args.ring_base_address = (uintptr_t)q->ring.va;
	args.ring_size = ring;
	args.write_pointer_address = (uintptr_t)q->ptrs.va + 0x38;
	args.read_pointer_address = (uintptr_t)q->ptrs.va + 0x80;
	if (type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL) {
		args.eop_buffer_address = (uintptr_t)g->eop.va;
		args.eop_buffer_size = g->eop.size;
		args.ctl_stack_size = PAGE;
	}
	must(dev->kfd, AMDKFD_IOC_CREATE_QUEUE, &args, "create queue");
	q->id = args.queue_id;
	q->doorbell = (uint64_t *)((char *)g->doorbells.va + args.doorbell_offset % DOORBELL_SLICE);
}

static uint32_t make_event(struct device *dev, uint64_t page, uint64_t *offset)
{
	struct kfd_ioctl_create_event_args args = { .event_page_offset = page, .event_type = KFD_IOC_EVENT_SIGNAL,
		.auto_reset = 1 };

	must(dev->kfd, AMDKFD_IOC_CREATE_EVENT, &args, "create event");
	if (offset)
		*offset = args.event_page_offset;
	return args.event_id;
}

/* The signal's event: the first one of the process brings the event page. */
static void make_signal(struct device *dev, struct gpu *g, bool own_page)
{
	uint64_t page = 0, offset = 0;

	if (!dev->events.va && !own_page) {
		bo_alloc(dev, g, EVENT_PAGE, KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, true, &dev->events);
		page = dev->events.handle;
	} else if (dev->events.gpu && dev->events.gpu != g) {
		bo_map_peer(dev, &dev->events, g);
	}
	g->event = make_event(dev, page, &offset);
	if (!dev->events.va) {
		dev->events.va = mmap(NULL, EVENT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, dev->kfd, offset);
		if (dev->events.va == MAP_FAILED)
			die("map the event page: %s", strerror(errno));
	}
	g->signal->event = g->event;
	/* Only a BO has a GPU address for the mailbox; without one the GPU marks
	 * the slot by itself when it interrupts. */
	g->signal->mailbox = own_page ? (uintptr_t)&g->out[8] : (uintptr_t)dev->events.va + 8ull * g->event;
}

static void start_gpu(struct device *dev, struct gpu *g, bool own_page)
{
	struct kfd_ioctl_acquire_vm_args vm = { .gpu_id = g->id };
	struct kfd_ioctl_set_memory_policy_args policy = { .gpu_id = g->id };
	char path[64];

	snprintf(path, sizeof(path), "/dev/dri/renderD%d", g->minor);
	g->drm_fd = open(path, O_RDWR | O_CLOEXEC);
	if (g->drm_fd < 0)
		die("open %s: %s", path, strerror(errno));
	vm.drm_fd = g->drm_fd;
	must(dev->kfd, AMDKFD_IOC_ACQUIRE_VM, &vm, "acquire vm");
	must(dev->kfd, AMDKFD_IOC_SET_MEMORY_POLICY, &policy, "set memory policy");

	bo_alloc(dev, g, DOORBELL_SLICE, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | RW, true, &g->doorbells);
	bo_alloc(dev, g, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | RW, true, &g->mmio);
	bo_alloc(dev, g, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_GTT | RW, true, &g->page);
	bo_alloc(dev, g, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_VRAM | RW, false, &g->eop);
	bo_alloc(dev, g, PAGE, KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE, true, &g->code);
	for (int op = 1; op < K_COUNT; op++) {
		uint64_t *code = (uint64_t *)((char *)g->code.va + 64 * op);

		memcpy(code, "GSKERNEL", 8);
		code[1] = op;
	}
	g->signal = g->page.va;
	g->args = (uint64_t *)((char *)g->page.va + 256);
	g->out = (uint64_t *)((char *)g->page.va + 512);
	g->fence = (uint32_t *)((char *)g->page.va + 1024);
	make_signal(dev, g, own_page);
	make_queue(dev, g, &g->aql, KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, AQL_PACKETS * 64);
	make_queue(dev, g, &g->sdma, KFD_IOC_QUEUE_TYPE_SDMA, SDMA_RING);
}

void device_open(struct device *dev, int max_gpus, bool own_page)
{
	struct kfd_ioctl_get_version_args version = { 0 };
	struct kfd_process_device_apertures apertures[MAX_GPUS];
	struct kfd_ioctl_get_process_apertures_new_args nodes = {
		.kfd_process_device_apertures_ptr = (uintptr_t)apertures, .num_of_nodes = MAX_GPUS
	};
	struct kfd_ioctl_set_xnack_mode_args xnack = { .xnack_enabled = -1 };

	memset(dev, 0, sizeof(*dev));
	dev->kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	if (dev->kfd < 0)
		die("open /dev/kfd: %s", strerror(errno));
	must(dev->kfd, AMDKFD_IOC_GET_VERSION, &version, "get version");
	if (version.major_version != 1 || version.minor_version < 8)
		die("kfd interface %u.%u", version.major_version, version.minor_version);
	must(dev->kfd, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &nodes, "get apertures");
	must(dev->kfd, AMDKFD_IOC_SET_XNACK_MODE, &xnack, "ask for xnack mode");
	find_gpus(dev, max_gpus);
	for (int i = 0; i < dev->num_gpus; i++)
		start_gpu(dev, &dev->gpus[i], own_page);
}

/* Waits for the GPU's event; a signal that interrupts the wait is no end. */
static void wait_event(struct device *dev, struct gpu *g)
{
	struct kfd_event_data data = { .event_id = g->event };
	struct kfd_ioctl_wait_events_args args = { .events_ptr = (uintptr_t)&data, .num_events = 1, .timeout = EVENT_MS };

	must(dev->kfd, AMDKFD_IOC_WAIT_EVENTS, &args, "wait for event");
	if (args.wait_result != KFD_IOC_WAIT_RESULT_COMPLETE)
		die("gpu %d: no event in %d s, wait result %u", g->index, EVENT_MS / 1000, args.wait_result);
}

void gpu_run(struct device *dev, struct gpu *g, enum kernel op, void *dst, const void *src, uint64_t n, uint64_t value)
{
	struct queue *q = &g->aql;
	char *pkt = (char *)q->ring.va + q->next % AQL_PACKETS * 64;

	g->args[0] = (uintptr_t)dst;
	g->args[1] = (uintptr_t)src;
	g->args[2] = n;
	g->args[3] = value;
	g->args[4] = (uintptr_t)g->out;
	g->signal->value = 1;
	memset(pkt + 2, 0, 62);
	*(uint64_t *)(pkt + 32) = (uintptr_t)g->code.va + 64 * op;
	*(uint64_t *)(pkt + 40) = (uintptr_t)g->args;
	*(uint64_t *)(pkt + 56) = (uintptr_t)g->signal;
	__atomic_store_n((uint16_t *)pkt, 2 /* kernel dispatch */, __ATOMIC_RELEASE);
	*(volatile uint64_t *)((char *)q->ptrs.va + 0x38) = q->next + 1;
	__atomic_store_n(q->doorbell, q->next, __ATOMIC_RELEASE);
	q->next++;
	while (g->signal->value)
		wait_event(dev, g);
}

uint64_t gpu_hash(struct device *dev, struct gpu *g, const void *src, uint64_t n)
{
	g->out[0] = 0;
	gpu_run(dev, g, K_HASH, NULL, src, n, 0);
	return g->out[0];
}

static void sdma_put(struct queue *q, const uint32_t *packet, int dwords)
{
	for (int i = 0; i < dwords; i++) {
		*(volatile uint32_t *)((char *)q->ring.va + q->next % SDMA_RING) = packet[i];
		q->next += 4;
	}
}

void gpu_sdma_copy(struct device *dev, struct gpu *g, void *dst, const void *src, uint64_t n)
{
	uint64_t s = (uintptr_t)src, d = (uintptr_t)dst, f = (uintptr_t)g->fence;
	struct queue *q = &g->sdma;
	const uint64_t max = 1 << 20;

	while (n) {
		uint32_t part = n < max ? n : max;

		/* Since GFX9 the count is one less; GFX12 has an eighth dword. */
		uint32_t copy[] = { 1 | (g->gfx < 12 ? 0 : SDMA_COPY_CPV), g->gfx < 9 ? part : part - 1, 0, s, s >> 32, d,
			d >> 32, 0 };
		sdma_put(q, copy, g->gfx < 12 ? 7 : 8);
		s += part;
		d += part;
		n -= part;
	}
	sdma_put(q, (uint32_t[]){ 5, f, f >> 32, ++g->fences }, 4);
	sdma_put(q, (uint32_t[]){ 6, g->event }, 2);
	*(volatile uint64_t *)((char *)q->ptrs.va + 0x38) = q->next;
	__atomic_store_n(q->doorbell, q->next, __ATOMIC_RELEASE);
	while (*g->fence != g->fences)
		wait_event(dev, g);
}
