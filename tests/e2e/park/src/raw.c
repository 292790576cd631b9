/*
 * A program that uses io_uring by its system calls alone, and keeps indices of its own, as libraries do:
 *
 *     raw SOCKET FILE ENTRIES FLAGS
 *
 *     go N      N blocks written to FILE and read again through the ring, each checked: "ok TOTAL"
 *     leave N   N completions are left in the ring
 *     half N    N requests are written and not submitted
 *     reap      those of both, in their order: "ok N"
 *     busy      a read of an empty pipe is begun; "finish" ends it
 *     spin      a thread of its own does what go does, all the time, and "count" tells how often
 *     eventfd, files, index, dup, watch, buffers, socket, fork   something that stands in the way of a dump
 */
#include "control.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif
enum { BLOCK = 512 };

struct ring {
	int fd;
	struct io_uring_params p;
	char *mem;
	char *sqes;
	unsigned tail, head; /* its own: of what is submitted, of what is reaped */
	int wide_sqe, wide_cqe;
};

static struct ring main_ring, spin_ring;
static int file;
static volatile unsigned long long spins;
static unsigned long long total, next_data = 1, next_reaped = 1;
static int pipe_fds[2];

static unsigned *word(struct ring *r, unsigned off) { return (unsigned *)(r->mem + off); }

static void setup(struct ring *r, unsigned entries, unsigned flags)
{
	memset(r, 0, sizeof *r);
	r->p.flags = flags;
	r->wide_sqe = !!(flags & IORING_SETUP_SQE128);
	r->wide_cqe = !!(flags & IORING_SETUP_CQE32);
	r->fd = (int)syscall(SYS_io_uring_setup, entries, &r->p);
	if (r->fd < 0)
		fail("io_uring_setup");
	size_t size = r->p.cq_off.cqes + r->p.cq_entries * (16ul << r->wide_cqe);
	if (!(flags & IORING_SETUP_NO_SQARRAY))
		size = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
	r->mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
	r->sqes = mmap(NULL, r->p.sq_entries * (64ul << r->wide_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		r->fd, IORING_OFF_SQES);
	if (r->mem == MAP_FAILED || r->sqes == MAP_FAILED)
		fail("mmap");
	/* The array goes the other way round, and is written once. */
	if (!(flags & IORING_SETUP_NO_SQARRAY))
		for (unsigned i = 0; i < r->p.sq_entries; i++)
			word(r, r->p.sq_off.array)[i] = r->p.sq_entries - 1 - i;
}

/* put writes a request, and does not submit it. */
static struct io_uring_sqe *put(struct ring *r)
{
	unsigned i = r->tail++ & (r->p.sq_entries - 1);
	if (!(r->p.flags & IORING_SETUP_NO_SQARRAY))
		i = word(r, r->p.sq_off.array)[i];
	struct io_uring_sqe *s = (void *)(r->sqes + i * (64ul << r->wide_sqe));
	memset(s, 0, 64ul << r->wide_sqe);
	return s;
}

static void submit(struct ring *r)
{
	unsigned n = r->tail - __atomic_load_n(word(r, r->p.sq_off.head), __ATOMIC_ACQUIRE);
	__atomic_store_n(word(r, r->p.sq_off.tail), r->tail, __ATOMIC_RELEASE);
	while (n) {
		unsigned wake = r->p.flags & IORING_SETUP_SQPOLL ? IORING_ENTER_SQ_WAKEUP : 0;
		long k = syscall(SYS_io_uring_enter, r->fd, n, 0, wake, NULL, 0);
		if (k < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (k <= 0)
			fail("io_uring_enter");
		n -= (unsigned)k;
	}
}

struct completion {
	unsigned long long user_data;
	int res;
	unsigned flags;
};

static struct completion reap(struct ring *r)
{
	while (__atomic_load_n(word(r, r->p.cq_off.tail), __ATOMIC_ACQUIRE) == r->head)
		if (syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR)
			fail("wait");
	struct completion c;
	memcpy(&c, r->mem + r->p.cq_off.cqes + (r->head & (r->p.cq_entries - 1)) * (16ul << r->wide_cqe), sizeof c);
	__atomic_store_n(word(r, r->p.cq_off.head), ++r->head, __ATOMIC_RELEASE);
	return c;
}

/* go writes a block and reads it back, and checks that it is the one. */
static void go(struct ring *r, unsigned long long n, off_t at)
{
	unsigned long long out[BLOCK / 8], in[BLOCK / 8] = {0};
	for (size_t i = 0; i < BLOCK / 8; i++)
		out[i] = n * 1000003 + i;
	for (int k = 0; k < 2; k++) {
		struct io_uring_sqe *s = put(r);
		s->opcode = k ? IORING_OP_READ : IORING_OP_WRITE;
		s->fd = file;
		s->addr = (uintptr_t)(k ? in : out);
		s->len = BLOCK;
		s->off = (unsigned long long)at;
		s->user_data = n * 2 + (unsigned)k;
		submit(r);
		struct completion c = reap(r);
		if (c.user_data != n * 2 + (unsigned)k || c.res != BLOCK) {
			fprintf(stderr, "a completion of %llu, %d, not of %llu\n", c.user_data, c.res, n * 2 + (unsigned)k);
			exit(4);
		}
	}
	if (memcmp(in, out, BLOCK)) {
		fprintf(stderr, "other data\n");
		exit(5);
	}
}

static void *spin(void *p)
{
	for (;; spins++)
		go(&spin_ring, spins, 1 << 20);
	return p;
}

int main(int argc, char **argv)
{
	char line[200];
	pthread_t t;
	if (argc < 5)
		return 2;
	file = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || pipe(pipe_fds))
		fail(argv[2]);
	setup(&main_ring, (unsigned)atoi(argv[3]), (unsigned)strtoul(argv[4], NULL, 0));
	for (int l = listening(argv[1]);;) {
		int fd = question(l, line, sizeof line);
		unsigned long long n = 0;
		struct ring *r = &main_ring;
		if (sscanf(line, "go %llu", &n) == 1) {
			while (n--)
				go(r, total++, 0);
			answer(fd, "ok", total);
		} else if (sscanf(line, "leave %llu", &n) == 1 || sscanf(line, "half %llu", &n) == 1) {
			for (unsigned long long i = 0; i < n; i++) {
				put(r)->user_data = next_data++;
				if (line[0] == 'l')
					submit(r);
			}
			answer(fd, "ok", n);
		} else if (!strcmp(line, "reap")) {
			submit(r);
			for (n = 0; next_reaped < next_data; n++, next_reaped++) {
				struct completion c = reap(r);
				if (c.user_data != next_reaped || c.res) {
					fprintf(stderr, "reaped %llu, %d, not %llu\n", c.user_data, c.res, next_reaped);
					exit(6);
				}
			}
			answer(fd, "ok", n);
		} else if (!strcmp(line, "busy")) {
			static char byte;
			struct io_uring_sqe *s = put(r);
			s->opcode = IORING_OP_READ;
			s->fd = pipe_fds[0];
			s->addr = (uintptr_t)&byte;
			s->len = 1;
			submit(r);
			answer(fd, "ok", 0);
		} else if (!strcmp(line, "finish")) {
			if (write(pipe_fds[1], "x", 1) != 1)
				fail("pipe");
			answer(fd, "ok", (unsigned long long)reap(r).res);
		} else if (!strcmp(line, "spin")) {
			setup(&spin_ring, 16, 0);
			pthread_create(&t, NULL, spin, NULL);
			answer(fd, "ok", 0);
		} else if (!strcmp(line, "count")) {
			answer(fd, "ok", spins);
		} else if (!strcmp(line, "eventfd")) {
			int e = eventfd(0, 0);
			answer(fd, "ok", (unsigned long long)syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_EVENTFD, &e, 1));
		} else if (!strcmp(line, "files")) {
			answer(fd, "ok",
				(unsigned long long)syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_FILES, &file, 1));
		} else if (!strcmp(line, "index")) {
			struct io_uring_rsrc_update u = {.offset = -1U, .data = (unsigned long long)r->fd};
			answer(fd, "ok",
				(unsigned long long)syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_RING_FDS, &u, 1));
		} else if (!strcmp(line, "dup")) {
			answer(fd, "ok", (unsigned long long)dup(r->fd));
		} else if (!strcmp(line, "watch")) {
			struct epoll_event e = {.events = EPOLLIN};
			int ep = epoll_create1(EPOLL_CLOEXEC);
			answer(fd, "ok", (unsigned long long)epoll_ctl(ep, EPOLL_CTL_ADD, r->fd, &e));
		} else if (!strcmp(line, "buffers")) {
			static char ring_memory[4096] __attribute__((aligned(4096)));
			struct io_uring_buf_reg b = {.ring_addr = (uintptr_t)ring_memory, .ring_entries = 8, .bgid = 4000};
			answer(fd, "ok",
				(unsigned long long)syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_PBUF_RING, &b, 1));
		} else if (!strcmp(line, "socket")) {
			answer(fd, "ok", (unsigned long long)socket(AF_VSOCK, SOCK_STREAM, 0));
		} else if (!strcmp(line, "fork")) {
			int pid = fork();
			if (pid == 0)
				for (;;)
					pause();
			answer(fd, "ok", (unsigned long long)pid);
		} else {
			answer(fd, "what?", 0);
		}
	}
}
