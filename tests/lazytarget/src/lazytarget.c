/*
 * A process that owns memory, changes it in all the ways a lazy-pages server
 * has to follow, and keeps checking every page of it.
 *
 * Every thread has regions: runs of pages of private anonymous memory. What
 * each page must contain follows from its tag, kept in an array beside the
 * region: tag 0 is a page of zeros, any other the seed of its 512 words. Tags
 * and everything else live in memory that is restored the same way, and a wrong
 * tag shows as a wrong page.
 *
 * The process talks to its test through a shared file mapping, which keeps its
 * contents over dump and restore.
 *
 * usage: lazytarget STATUS MB THREADS SEED [quiet [rough]] [cold MB]
 * With quiet it changes nothing: it checks its memory when asked to. With rough no compressor finds anything in it.
 * With cold it has so much more memory, which it does not touch before it is told to stop: then it checks that too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

#define PAGE 4096UL
#define WORDS (PAGE / 8)
#define MAXREGIONS 64
#define MAXTHREADS 16

static struct status *st;
static uint64_t seed;
static int quiet, rough;
static size_t cold_mb;

struct region {
	uint8_t *p;
	size_t n; /* pages */
	uint64_t *tag;
	/* It may be several mappings since mprotect: after a fork the kernel
	 * does not always join them again, and mremap takes one at a time. */
	int split;
};

struct thread {
	int id;
	pthread_t t;
	uint64_t rnd;
	size_t budget; /* pages it may own */
	size_t own;
	int n;
	struct region r[MAXREGIONS];
};

static struct thread threads[MAXTHREADS];
static int nthreads;
static struct region cold;
static _Atomic uint64_t next_tag = 1;
static __thread sigjmp_buf *bus_jmp;

static void failed(const char *fmt, ...)
{
	va_list ap;
	char line[400];
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	if (atomic_fetch_add(&st->mismatches, 1) < 8)
		strncat(st->message, line, sizeof st->message - strlen(st->message) - 1);
}

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static uint64_t rnd(struct thread *t, uint64_t n)
{
	t->rnd = mix(t->rnd);
	return t->rnd % n;
}

/* word is the i-th of a page that begins with x. */
static uint64_t word(uint64_t x, size_t i)
{
	x += i * 0x9e3779b97f4a7c15;
	return rough ? mix(x) : x;
}

static void fill(uint8_t *p, uint64_t tag)
{
	uint64_t *w = (uint64_t *)p, x = mix(tag ^ seed);
	for (size_t i = 0; i < WORDS; i++)
		w[i] = word(x, i);
}

/* check_page returns 0 when the page is right or gave SIGBUS. */
static int check_page(struct region *r, size_t i, const char *who)
{
	sigjmp_buf jmp;

	if (sigsetjmp(jmp, 1)) {
		bus_jmp = NULL;
		atomic_fetch_add(&st->sigbus, 1);
		return 0;
	}
	bus_jmp = &jmp;
	volatile uint64_t *w = (uint64_t *)(r->p + i * PAGE);
	uint64_t tag = r->tag[i];
	uint64_t x = tag ? mix(tag ^ seed) : 0;
	for (size_t k = 0; k < WORDS; k++) {
		uint64_t got = w[k], want = tag ? word(x, k) : 0;
		if (got != want) {
			bus_jmp = NULL;
			failed("%s: page %p word %zu of tag %lx: got %lx, want %lx\n", who, (void *)w, k, tag, got, want);
			return 1;
		}
	}
	bus_jmp = NULL;
	atomic_fetch_add(&st->pages, 1);
	return 0;
}

static void check_region(struct region *r, const char *who)
{
	for (size_t i = 0; i < r->n; i++)
		if (check_page(r, i, who))
			return;
}

static void on_bus(int sig)
{
	(void)sig;
	if (bus_jmp)
		siglongjmp(*bus_jmp, 1);
	atomic_fetch_add(&st->sigbus, 1);
	_exit(7);
}

static void write_pages(struct region *r, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		r->tag[i] = atomic_fetch_add(&next_tag, 1) * MAXTHREADS;
		fill(r->p + i * PAGE, r->tag[i]);
	}
}

static void die(const char *what)
{
	failed("%s: %s\n", what, strerror(errno));
	_exit(3);
}

static void map_region(struct region *r, size_t n)
{
	r->n = n;
	r->split = 0;
	r->p = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->tag = calloc(n, sizeof *r->tag);
	if (r->p == MAP_FAILED || !r->tag)
		die("mmap");
}

static void new_region(struct thread *t, size_t n)
{
	struct region *r = &t->r[t->n++];
	map_region(r, n);
	t->own += n;
	/* Some pages stay untouched: they have no contents in the images. */
	size_t hole = rnd(t, 4) ? n : rnd(t, n);
	write_pages(r, 0, hole);
	if (n >= 512 && rnd(t, 2))
		madvise(r->p, n * PAGE, MADV_HUGEPAGE);
}

static void forget_region(struct thread *t, int i)
{
	free(t->r[i].tag);
	t->own -= t->r[i].n;
	t->r[i] = t->r[--t->n];
}

static void resize_tags(struct region *r, size_t n)
{
	r->tag = realloc(r->tag, n * sizeof *r->tag);
	if (!r->tag)
		die("realloc");
	for (size_t i = r->n; i < n; i++)
		r->tag[i] = 0;
}

static void change(struct thread *t, int depth);

/* A child is a thread's view of its own memory; it may change it as well. */
static void fork_child(struct thread *t, int depth)
{
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		uint64_t before = atomic_load(&st->mismatches);
		int first = rnd(t, 2);
		for (int i = 0; i < t->n && first; i++)
			check_region(&t->r[i], "child at once");
		for (int i = 0; i < 6; i++)
			change(t, depth + 1);
		for (int i = 0; i < t->n; i++)
			check_region(&t->r[i], "child");
		_exit(atomic_load(&st->mismatches) == before ? 0 : 5);
	}
	/* The parent goes on changing its memory while the child looks at its own. */
	for (int i = 0; i < 4; i++)
		change(t, 9);
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	/* A signal that finds its stack poisoned turns into SIGSEGV. */
	int bus = atomic_load(&st->damaged) &&
		(WIFEXITED(status) ? WEXITSTATUS(status) == 7 : WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
	if (!bus && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
		failed("child ended with status %x\n", status);
	atomic_fetch_add(&st->forks, 1);
}

static void change(struct thread *t, int depth)
{
	atomic_fetch_add(&st->ops, 1);
	atomic_fetch_add(&st->beats, 1);
	if (t->n == 0 || (t->own < t->budget && t->n < MAXREGIONS && rnd(t, 4) == 0)) {
		size_t n = 1 + rnd(t, rnd(t, 8) ? 64 : 1024);
		if (t->n < MAXREGIONS)
			new_region(t, n);
		return;
	}
	int k = rnd(t, t->n);
	struct region *r = &t->r[k];
	size_t from = rnd(t, r->n), to = from + 1 + rnd(t, r->n - from);
	int what = rnd(t, 16);
	if (r->split && what >= 5 && what <= 8)
		what = 9;
	switch (what) {
	case 0: case 1: case 2:
		check_region(r, "region");
		break;
	case 3:
		for (size_t i = from; i < to; i++)
			check_page(r, i, "part");
		break;
	case 4:
		write_pages(r, from, to);
		break;
	case 5: { /* move, and grow: what is added reads as zero */
		size_t n = r->n + (t->own < t->budget ? rnd(t, 16) : 0);
		void *p = mremap(r->p, r->n * PAGE, n * PAGE, MREMAP_MAYMOVE);
		if (p == MAP_FAILED)
			die("mremap");
		resize_tags(r, n);
		t->own += n - r->n;
		r->p = p;
		r->n = n;
		break;
	}
	case 6: case 7: { /* move to where another mapping was */
		void *to_p = mmap(NULL, r->n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (to_p == MAP_FAILED)
			die("mmap");
		void *p = mremap(r->p, r->n * PAGE, r->n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to_p);
		if (p != to_p)
			die("mremap fixed");
		r->p = p;
		break;
	}
	case 8: /* another region of the same thread takes the place */
		if (t->n > 1) {
			int j = (k + 1 + rnd(t, t->n - 1)) % t->n;
			struct region *o = &t->r[j];
			if (o->n >= r->n) {
				uint8_t *at = o->p;
				size_t rest = o->n - r->n;
				void *p = mremap(r->p, r->n * PAGE, r->n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at);
				if (p != at)
					die("mremap over");
				r->p = p;
				/* what is left of the other one */
				t->own -= r->n;
				memmove(o->tag, o->tag + r->n, rest * sizeof *o->tag);
				o->p += r->n * PAGE;
				o->n = rest;
				if (rest == 0)
					forget_region(t, j);
			}
		}
		break;
	case 9: /* unmap */
		if (munmap(r->p, r->n * PAGE))
			die("munmap");
		forget_region(t, k);
		break;
	case 10: /* unmap the tail, or the middle */
		if (to < r->n && t->n < MAXREGIONS) {
			struct region *o = &t->r[t->n];
			o->n = r->n - to;
			o->p = r->p + to * PAGE;
			o->split = r->split;
			o->tag = calloc(o->n, sizeof *o->tag);
			if (!o->tag)
				die("calloc");
			memcpy(o->tag, r->tag + to, o->n * sizeof *o->tag);
			t->n++;
		} else {
			to = r->n;
		}
		if (munmap(r->p + from * PAGE, (to - from) * PAGE))
			die("munmap part");
		t->own -= to - from;
		r->n = from;
		if (from == 0)
			forget_region(t, k);
		break;
	case 11: case 12: /* give contents up */
		if (madvise(r->p + from * PAGE, (to - from) * PAGE, MADV_DONTNEED))
			die("madvise");
		for (size_t i = from; i < to; i++)
			r->tag[i] = 0;
		break;
	case 13:
		if (madvise(r->p + from * PAGE, (to - from) * PAGE, MADV_FREE))
			die("madvise free");
		write_pages(r, from, to);
		break;
	case 14: /* split the mapping */
		if (rnd(t, 4))
			break;
		r->split = 1;
		if (mprotect(r->p + from * PAGE, (to - from) * PAGE, PROT_READ))
			die("mprotect");
		for (size_t i = from; i < to; i++)
			check_page(r, i, "protected");
		if (rnd(t, 2) && mprotect(r->p + from * PAGE, (to - from) * PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
		if (mprotect(r->p, r->n * PAGE, PROT_READ | PROT_WRITE))
			die("mprotect");
		break;
	case 15:
		if (depth < 2 && rnd(t, 3) == 0)
			fork_child(t, depth);
		break;
	}
}

static uint64_t now_ns(void)
{
	struct timespec ts;
	/* CRIU gives a process its own monotonic clock. */
	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void *run(void *arg)
{
	struct thread *t = arg;
	uint64_t seen = 0;

	while (!atomic_load(&st->stop)) {
		if (!quiet) {
			change(t, 0);
			continue;
		}
		uint64_t want = atomic_load(&st->check);
		atomic_fetch_add(&st->beats, 1);
		if (seen == want) {
			usleep(200);
			continue;
		}
		/* hot set first: every twentieth page run of 16 */
		for (int i = 0; i < t->n; i++)
			for (size_t k = 0; k < t->r[i].n; k += 320)
				for (size_t j = k; j < k + 16 && j < t->r[i].n; j++)
					check_page(&t->r[i], j, "hot");
		atomic_store(&st->hot_ns, now_ns());
		seen = want;
		if (atomic_fetch_add(&st->hot_passes, 1), atomic_load(&st->hot_only))
			continue;
		for (int i = 0; i < t->n; i++)
			check_region(&t->r[i], "all");
		atomic_fetch_add(&st->checked, 1);
	}
	for (int i = 0; i < t->n; i++)
		check_region(&t->r[i], "last");
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: lazytarget STATUS MB THREADS SEED [quiet [rough]] [cold MB]\n");
		return 2;
	}
	/* What it was started with may lie in a mount that CRIU cannot see. */
	syscall(SYS_close_range, 3U, ~0U, 0U);
	int fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 2;
	}
	st = mmap(NULL, sizeof *st, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (st == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	size_t mb = atol(argv[2]);
	nthreads = atoi(argv[3]);
	if (nthreads < 1 || nthreads > MAXTHREADS)
		return 2;
	seed = strtoull(argv[4], NULL, 0);
	for (int i = 5; i < argc; i++) {
		if (!strcmp(argv[i], "quiet"))
			quiet = 1;
		else if (!strcmp(argv[i], "rough"))
			rough = 1;
		else if (!strcmp(argv[i], "cold") && i + 1 < argc)
			cold_mb = atol(argv[++i]);
		else
			return 2;
	}
	struct sigaction sa = { .sa_handler = on_bus, .sa_flags = SA_NODEFER };
	sigaction(SIGBUS, &sa, NULL);
	setsid();

	for (int i = 0; i < nthreads; i++) {
		struct thread *t = &threads[i];
		t->id = i;
		t->rnd = mix(seed * 31 + i);
		t->budget = (mb << 20) / PAGE / nthreads;
		while (t->own < t->budget && t->n < MAXREGIONS - 8) {
			size_t n = t->budget / 24 + 1 + (quiet ? 0 : rnd(t, t->budget / 12 + 1));
			if (n > t->budget - t->own)
				n = t->budget - t->own;
			new_region(t, n);
		}
	}
	if (cold_mb) {
		map_region(&cold, (cold_mb << 20) / PAGE);
		write_pages(&cold, 0, cold.n);
	}
	for (int i = 1; i < nthreads; i++)
		if (pthread_create(&threads[i].t, NULL, run, &threads[i]))
			return 2;
	atomic_store(&st->ready, 1);
	run(&threads[0]);
	for (int i = 1; i < nthreads; i++)
		pthread_join(threads[i].t, NULL);
	check_region(&cold, "cold");
	atomic_store(&st->exited, 1);
	return atomic_load(&st->mismatches) ? 1 : 0;
}
