/*
 * workload: a process worth checkpointing. It fills memory of a chosen make-up, keeps verifying every byte of it from
 * several threads, lets its heap drift slowly, and tells what it finds in a status file. A child process does the same
 * with a heap of its own.
 *
 * Layout: one private anonymous range, cut into groups; each group holds a slice of every kind in the order weights,
 * bf16, zero, heap, as a process that loads a model layer by layer and allocates between the layers has it. Kinds:
 *   weights  fp32, normally distributed (sigma 0.02), a function of --model-seed
 *   bf16     the same, cut to bfloat16: seven noisy mantissa bits, few distinct exponents
 *   zero     written once with zeros, so the pages exist
 *   heap     records with pointers into the heap (their values move with the address space), counters, doubles and
 *            words; a function of --heap-seed; --churn of its pages change a second, four in five of them in the first
 *            tenth of each slice
 *
 * Verification: each block of 1 MiB has a sum in memory, and blocks are checked in a round by all threads. A sum is
 * never zero, so memory that reads as zero, the table of sums included, is found. The mutator holds the block's lock.
 *
 * Status: STATUS_SIZE bytes rewritten in place, so that a checkpoint taken while the file is open finds it unchanged at
 * restore:
 *   "ok passes=P child_passes=C ticks=T bytes=B\n", or "corrupt at 0xADDR in WHERE ...\n", padded with spaces.
 * passes counts complete rounds over the memory; ticks counts status updates, every 20 ms.
 *
 * It becomes a session leader, touches no terminal and closes whatever it inherited beyond stdio, which the caller
 * redirects: a lock or a pipe of make or of a test runner would be in the way of its checkpoint. SIGTERM ends it, and
 * the child with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_SIZE = 256, PAGE = 4096, BLOCK = 1 << 20, TICK_MS = 20, RECORD = 128 };

enum kind { WEIGHTS, BF16, ZERO, HEAP, KINDS };
static const char *kind_names[KINDS] = { "weights", "bf16", "zero", "heap" };

struct block {
	uint8_t *addr;
	enum kind kind;
	_Atomic uint64_t sum;
	pthread_mutex_t lock;
};

struct report { uint64_t passes, corrupt; };

static struct {
	const char *status;
	long mem_mb, child_mb, threads, groups, rate_mb;
	long share[KINDS];
	double churn;
	uint64_t model_seed, heap_seed;
} opt = { .mem_mb = 64, .child_mb = 8, .threads = 4, .groups = 8, .share = { 35, 30, 20, 15 }, .churn = 0.01,
	.model_seed = 1, .heap_seed = 1 };

static struct block *blocks;
static size_t nblocks;
static uint8_t *memory;
static size_t memory_size;
static _Atomic uint64_t next_block, checked;
static _Atomic uintptr_t corrupt_at;
static _Atomic int corrupt_kind;

static void die(const char *what)
{
	fprintf(stderr, "workload: %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline uint64_t splitmix(uint64_t *s)
{
	uint64_t z = (*s += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* normal gives a value of mean 0 and standard deviation 1, by Box and Muller. */
static inline void normal(uint64_t *s, float out[2])
{
	uint64_t r = splitmix(s);
	float u = ((uint32_t)(r >> 40) + 1) * 0x1p-24f, v = (uint32_t)(r & 0xffffff) * 0x1p-24f;
	float m = sqrtf(-2 * logf(u));
	sincosf(6.2831853f * v, &out[0], &out[1]);
	out[0] *= m;
	out[1] *= m;
}

static void fill_weights(uint8_t *p, uint64_t seed)
{
	float *f = (float *)p, n[2];
	for (size_t i = 0; i < BLOCK / 4; i += 2) {
		normal(&seed, n);
		f[i] = 0.02f * n[0];
		f[i + 1] = 0.02f * n[1];
	}
}

static void fill_bf16(uint8_t *p, uint64_t seed)
{
	uint16_t *h = (uint16_t *)p;
	float n[2];
	for (size_t i = 0; i < BLOCK / 2; i += 2) {
		normal(&seed, n);
		for (int j = 0; j < 2; j++) {
			uint32_t bits;
			n[j] *= 0.02f;
			memcpy(&bits, &n[j], 4);
			h[i + j] = bits >> 16;
		}
	}
}

static const char *words[] = { "request", "response", "session", "token", "layer", "attention", "embedding", "cache",
	"scheduler", "tensor", "stream", "kernel", "block_table", "sequence", "batch", "worker", "engine", "sampler",
	"logits", "prompt", "decode", "prefill",
	"queue", "lock", "owner", "parent", "shape", "dtype", "device", "allocator", "arena", "handle" };

/* record writes one heap object at p: link, owner, id, kind, score, name, small fields. */
static void record(uint8_t *p, uint8_t *slice, size_t slice_size, uint64_t *s, uint64_t generation)
{
	uint64_t r = splitmix(s);
	uint64_t link = (uintptr_t)slice + (r % (slice_size / RECORD)) * RECORD;
	uint64_t owner = (uintptr_t)slice + ((r >> 32) % 64) * RECORD;
	double score = (double)(r & 0xffff) / 256.0;
	memset(p, 0, RECORD);
	memcpy(p, &link, 8);
	memcpy(p + 8, &owner, 8);
	memcpy(p + 16, &generation, 8);
	memcpy(p + 24, &score, 8);
	snprintf((char *)p + 32, 40, "%s.%s.%u", words[r >> 59], words[r >> 54 & 31], (unsigned)(r >> 20 & 0xfff));
	p[72] = r >> 16 & 7;
	p[76] = r >> 8 & 3;
	memcpy(p + 96, &r, 8);
}

static void fill_heap(uint8_t *p, uint8_t *slice, size_t slice_size, uint64_t seed)
{
	for (size_t i = 0; i < BLOCK; i += RECORD)
		record(p + i, slice, slice_size, &seed, i / RECORD);
}

/* sum hashes one block; four lanes, so that memory and not the multiplier is the limit. */
static uint64_t sum(const uint8_t *p)
{
	const uint64_t *w = (const uint64_t *)p, k = 0x9ddfea08eb382d69u;
	uint64_t a = 1, b = 2, c = 3, d = 4;
	for (size_t i = 0; i < BLOCK / 8; i += 4) {
		a = (a ^ w[i]) * k;
		b = (b ^ w[i + 1]) * k;
		c = (c ^ w[i + 2]) * k;
		d = (d ^ w[i + 3]) * k;
		a ^= a >> 29;
		b ^= b >> 29;
		c ^= c >> 29;
		d ^= d >> 29;
	}
	a = (a * 3 + b) * k + (c * 3 + d);
	return a ? a : 1;
}

static void nap(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };
	nanosleep(&t, NULL);
}

static void verify(struct block *b)
{
	pthread_mutex_lock(&b->lock);
	if (sum(b->addr) != b->sum) {
		uintptr_t none = 0;
		if (atomic_compare_exchange_strong(&corrupt_at, &none, (uintptr_t)b->addr))
			corrupt_kind = b->kind;
	}
	pthread_mutex_unlock(&b->lock);
	checked++;
}

static void *verifier(void *unused)
{
	(void)unused;
	for (;;) {
		verify(&blocks[next_block++ % nblocks]);
		if (opt.rate_mb)
			nap(1000000 * opt.threads / opt.rate_mb);
	}
	return NULL;
}

/*
 * mutate rewrites a few records of as many heap pages as churn asks for in one tick; heap is the heap's part of all
 * memory, 0 to 1.
 */
static void mutate(double heap, uint64_t *seed)
{
	static uint64_t generation = 1 << 20;
	static double due;
	for (due += opt.churn * heap * nblocks * (BLOCK / PAGE) * TICK_MS / 1000; due >= 1;) {
		struct block *b = &blocks[splitmix(seed) % nblocks];
		if (b->kind != HEAP)
			continue;
		struct block *first = b, *last = b;
		while (first > blocks && first[-1].kind == HEAP)
			first--;
		while (last + 1 < blocks + nblocks && last[1].kind == HEAP)
			last++;
		size_t size = (size_t)(last - first + 1) * BLOCK, pages = size / PAGE;
		uint64_t r = splitmix(seed);
		size_t page = r % 5 ? (r >> 8) % (pages / 10 + 1) : (r >> 8) % pages;
		b = first + page * PAGE / BLOCK;
		pthread_mutex_lock(&b->lock);
		if (sum(b->addr) == b->sum) {
			for (int i = 0; i < 3; i++)
				record(first->addr + page * PAGE + splitmix(seed) % (PAGE / RECORD) * RECORD, first->addr, size, seed,
					generation++);
			b->sum = sum(b->addr);
		}
		pthread_mutex_unlock(&b->lock);
		due--;
	}
}

/* build maps the memory, fills it and sums it; mb is rounded up to whole blocks for each kind of each group. */
static void build(long mb, const long share[KINDS])
{
	long total = share[0] + share[1] + share[2] + share[3], groups = opt.groups;
	long per[KINDS], count = 0;
	for (int k = 0; k < KINDS; k++) {
		per[k] = (mb * share[k] + total * groups / 2) / (total * groups);
		if (share[k] && !per[k])
			per[k] = 1;
		count += per[k] * groups;
	}
	nblocks = count;
	memory_size = nblocks * BLOCK;
	memory = mmap(NULL, memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	blocks = mmap(NULL, nblocks * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || blocks == MAP_FAILED)
		die("mmap");
	size_t n = 0;
	for (long g = 0; g < groups; g++)
		for (int k = 0; k < KINDS; k++) {
			uint8_t *slice = memory + n * BLOCK;
			for (long i = 0; i < per[k]; i++, n++) {
				blocks[n] = (struct block){ .addr = memory + n * BLOCK, .kind = k };
				pthread_mutex_init(&blocks[n].lock, NULL);
			}
			if (k == HEAP)
				for (long i = 0; i < per[k]; i++)
					fill_heap(slice + i * BLOCK, slice, per[k] * BLOCK, opt.heap_seed << 32 | (g << 16) | i);
		}
}

/* filler fills every opt.threads-th block, from its own number on. */
static void *filler(void *self)
{
	for (size_t i = (uintptr_t)self; i < nblocks; i += opt.threads) {
		struct block *b = &blocks[i];
		uint64_t seed = opt.model_seed << 32 | i << 1;
		switch (b->kind) {
		case WEIGHTS: fill_weights(b->addr, seed); break;
		case BF16: fill_bf16(b->addr, seed + 1); break;
		case ZERO: memset(b->addr, 0, BLOCK); break;
		default: break;
		}
		b->sum = sum(b->addr);
	}
	return NULL;
}

static void start(void *(*f)(void *), int join)
{
	pthread_t t[opt.threads];
	for (long i = 0; i < opt.threads; i++)
		if ((errno = pthread_create(&t[i], NULL, f, (void *)i)))
			die("pthread_create");
	for (long i = 0; join && i < opt.threads; i++)
		pthread_join(t[i], NULL);
}

static void write_status(uint64_t ticks, const struct report *child)
{
	char line[STATUS_SIZE + 1];
	int n;
	if (corrupt_at)
		n = snprintf(line, sizeof line, "corrupt at 0x%lx in %s", (unsigned long)corrupt_at, kind_names[corrupt_kind]);
	else if (child->corrupt)
		n = snprintf(line, sizeof line, "corrupt at 0x%lx in child", (unsigned long)child->corrupt);
	else
		n = snprintf(line, sizeof line, "ok");
	n += snprintf(line + n, sizeof line - n, " passes=%lu child_passes=%lu ticks=%lu bytes=%zu",
		(unsigned long)(checked / nblocks),
		      (unsigned long)child->passes, (unsigned long)ticks, memory_size);
	memset(line + n, ' ', STATUS_SIZE - n);
	line[STATUS_SIZE - 1] = '\n';
	int fd = open(opt.status, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || pwrite(fd, line, STATUS_SIZE, 0) != STATUS_SIZE)
		die(opt.status);
	close(fd);
}

/* child_main never returns; it sends a report each tick. */
static void child_main(int fd, pid_t parent)
{
	static const long share[KINDS] = { [HEAP] = 1 };
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	opt.threads = 2;
	opt.groups = 1;
	opt.heap_seed += 7919;
	build(opt.child_mb, share);
	start(filler, 1);
	start(verifier, 0);
	for (uint64_t seed = opt.heap_seed;; nap(TICK_MS * 1000)) {
		mutate(1, &seed);
		struct report r = { checked / nblocks, corrupt_at };
		if (write(fd, &r, sizeof r) != sizeof r)
			_exit(0);
	}
}

static long number(const char *s, long min)
{
	char *end;
	long v = strtol(s, &end, 10);
	if (*end || end == s || v < min) {
		fprintf(stderr, "workload: bad number %s\n", s);
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	enum { STATUS = 1, MEM, CHILD, THREADS, GROUPS, RATE, CHURN, MODEL, HSEED, SHARE };
	static const struct option longs[] = {
		{ "status", 1, 0, STATUS }, { "mem", 1, 0, MEM }, { "child-mem", 1, 0, CHILD }, { "threads", 1, 0, THREADS },
		{ "groups", 1, 0, GROUPS }, { "check-rate", 1, 0, RATE }, { "churn", 1, 0, CHURN },
		{ "model-seed", 1, 0, MODEL },
		{ "heap-seed", 1, 0, HSEED }, { "weights", 1, 0, SHARE + WEIGHTS }, { "bf16", 1, 0, SHARE + BF16 },
		{ "zero", 1, 0, SHARE + ZERO }, { "heap", 1, 0, SHARE + HEAP }, { 0 }
	};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;)
		switch (c) {
		case STATUS: opt.status = optarg; break;
		case MEM: opt.mem_mb = number(optarg, 1); break;
		case CHILD: opt.child_mb = number(optarg, 1); break;
		case THREADS: opt.threads = number(optarg, 1); break;
		case GROUPS: opt.groups = number(optarg, 1); break;
		case RATE: opt.rate_mb = number(optarg, 0); break;
		case CHURN: opt.churn = atof(optarg); break;
		case MODEL: opt.model_seed = number(optarg, 0); break;
		case HSEED: opt.heap_seed = number(optarg, 0); break;
		case SHARE + WEIGHTS: case SHARE + BF16: case SHARE + ZERO: case SHARE + HEAP:
			opt.share[c - SHARE] = number(optarg, 0);
			break;
		default: exit(2);
		}
	if (!opt.status || optind != argc || !(opt.share[WEIGHTS] + opt.share[BF16] + opt.share[ZERO] + opt.share[HEAP])) {
		fprintf(stderr,
			"usage: workload --status FILE [--mem MB] [--child-mem MB] [--threads N] [--groups N] "
			"[--check-rate MB/s] [--churn SHARE/s]\n"
				"                [--model-seed N] [--heap-seed N] [--weights PARTS] [--bf16 PARTS] "
			"[--zero PARTS] [--heap PARTS]\n");
		exit(2);
	}
	close_range(3, ~0U, 0);
	setsid(); /* fails where the caller has done it */

	int pipes[2];
	pid_t self = getpid();
	if (pipe2(pipes, O_CLOEXEC))
		die("pipe");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		close(pipes[0]);
		child_main(pipes[1], self);
	}
	close(pipes[1]);

	build(opt.mem_mb, opt.share);
	start(filler, 1);
	start(verifier, 0);
	struct report r = { 0 };
	for (uint64_t ticks = 0, seed = opt.heap_seed;; ticks++) {
		mutate((double)opt.share[HEAP] / (opt.share[WEIGHTS] + opt.share[BF16] + opt.share[ZERO] + opt.share[HEAP]),
			&seed);
		/* The child writes one report a tick: this read paces the loop, and ends with the child. */
		if (read(pipes[0], &r, sizeof r) != sizeof r)
			die("the child has gone");
		if (r.passes && checked >= nblocks)
			write_status(ticks, &r);
	}
}
