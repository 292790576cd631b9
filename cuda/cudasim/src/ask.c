/*
 * A process is asked over a pair of sockets of its own: the asker takes a copy of its descriptor ASK_FD. Nothing of it
 * has a name, so that several copies of a restored process can be there at once.
 */
#define _GNU_SOURCE
#include "ask.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ASK_FD = 990, SERVE_FD = 991 };

bool ask_begin(void)
{
	int pair[2];
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0 && dup3(pair[0], ASK_FD, O_CLOEXEC) >= 0 &&
		dup3(pair[1], SERVE_FD, O_CLOEXEC) >= 0 && close(pair[0]) == 0 && close(pair[1]) == 0;
}

void ask_end(void)
{
	close(ASK_FD);
	close(SERVE_FD);
}

/* A message carries the descriptor that its answer goes to. */
struct packet {
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part;
	struct msghdr h;
};

static struct msghdr *packet(struct packet *p, const struct message *m)
{
	*p = (struct packet){.control.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS}};
	p->part = (struct iovec){.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof *m};
	p->h = (struct msghdr){.msg_iov = &p->part, .msg_iovlen = 1, .msg_control = &p->control,
		.msg_controllen = sizeof p->control};
	return &p->h;
}

int ask_next(struct message *m)
{
	struct packet p;
	int fd = -1;
	if (recvmsg(SERVE_FD, packet(&p, m), MSG_CMSG_CLOEXEC) == (ssize_t)sizeof *m &&
		p.h.msg_controllen >= CMSG_LEN(sizeof fd))
		memcpy(&fd, CMSG_DATA(&p.control.head), sizeof fd);
	return fd;
}

void ask_answer(int fd, const struct answer *a)
{
	ssize_t n = send(fd, a, sizeof *a, MSG_NOSIGNAL); /* who asked may be gone */
	(void)n;
	close(fd);
}

int process_of(int tid)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/%d/status", tid);
	FILE *f = fopen(path, "re");
	int pid = tid;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "Tgid: %d", &pid) == 1)
			break;
	if (f)
		fclose(f);
	return pid;
}

bool ask_process(int pid, const struct message *m, struct answer *a)
{
	int p = (int)syscall(SYS_pidfd_open, process_of(pid), 0);
	int to = p < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, p, ASK_FD, 0), why = errno, own[2];
	if (p >= 0)
		close(p);
	if (to < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, own)) {
		errno = why;
		return false;
	}
	struct packet q;
	struct msghdr *h = packet(&q, m);
	memcpy(CMSG_DATA(&q.control.head), &own[1], sizeof own[1]);
	bool sent = sendmsg(to, h, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
	close(own[1]); /* the other one's end gives an end of file then */
	close(to);
	bool ok = sent && recv(own[0], a, sizeof *a, MSG_WAITALL) == (ssize_t)sizeof *a;
	close(own[0]);
	errno = 0;
	return ok;
}
