/* The same as raw.c, as far as it goes, by liburing: library SOCKET FILE ENTRIES FLAGS */
#include "control.h"

#include <fcntl.h>
#include <liburing.h>

enum { BLOCK = 512 };

static struct io_uring ring;
static int file, pipe_fds[2];
static unsigned long long total, next_data = 1, next_reaped = 1;

static struct io_uring_sqe *next(void)
{
	struct io_uring_sqe *s = io_uring_get_sqe(&ring);
	if (!s)
		fail("no entry");
	return s;
}

static int reap(unsigned long long data)
{
	struct io_uring_cqe *c;
	int e;
	while ((e = io_uring_wait_cqe(&ring, &c)) == -EINTR)
		;
	if (e || c->user_data != data) {
		fprintf(stderr, "a completion of %llu, not of %llu; %d\n", e ? 0 : (unsigned long long)c->user_data, data, e);
		exit(4);
	}
	e = c->res;
	io_uring_cqe_seen(&ring, c);
	return e;
}

static void go(unsigned long long n)
{
	unsigned long long out[BLOCK / 8], in[BLOCK / 8] = {0};
	for (size_t i = 0; i < BLOCK / 8; i++)
		out[i] = n * 1000003 + i;
	for (int k = 0; k < 2; k++) {
		struct io_uring_sqe *s = next();
		if (k)
			io_uring_prep_read(s, file, in, BLOCK, 0);
		else
			io_uring_prep_write(s, file, out, BLOCK, 0);
		s->user_data = n * 2 + (unsigned)k;
		if (io_uring_submit(&ring) != 1)
			fail("submit");
		if (reap(n * 2 + (unsigned)k) != BLOCK)
			exit(5);
	}
	if (memcmp(in, out, BLOCK)) {
		fprintf(stderr, "other data\n");
		exit(6);
	}
}

int main(int argc, char **argv)
{
	char line[200];
	if (argc < 5)
		return 2;
	file = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || pipe(pipe_fds) ||
		io_uring_queue_init((unsigned)atoi(argv[3]), &ring, (unsigned)strtoul(argv[4], NULL, 0)))
		fail("start");
	for (int l = listening(argv[1]);;) {
		int fd = question(l, line, sizeof line);
		unsigned long long n = 0;
		static char byte;
		if (sscanf(line, "go %llu", &n) == 1) {
			while (n--)
				go(total++);
			answer(fd, "ok", total);
		} else if (sscanf(line, "leave %llu", &n) == 1) {
			for (unsigned long long i = 0; i < n; i++) {
				struct io_uring_sqe *s = next();
				io_uring_prep_nop(s);
				s->user_data = next_data++;
			}
			if (io_uring_submit(&ring) != (int)n)
				fail("submit");
			answer(fd, "ok", n);
		} else if (!strcmp(line, "reap")) {
			for (n = 0; next_reaped < next_data; n++, next_reaped++)
				reap(next_reaped);
			answer(fd, "ok", n);
		} else if (!strcmp(line, "busy")) {
			struct io_uring_sqe *s = next();
			io_uring_prep_read(s, pipe_fds[0], &byte, 1, 0);
			s->user_data = 7;
			io_uring_submit(&ring);
			answer(fd, "ok", 0);
		} else if (!strcmp(line, "finish")) {
			if (write(pipe_fds[1], "x", 1) != 1)
				fail("pipe");
			answer(fd, "ok", (unsigned long long)reap(7));
		} else {
			answer(fd, "what?", 0);
		}
	}
}
