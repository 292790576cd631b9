/*
 * Plans and fills of the restore server. A plan is shared memory that the helper has
 * written: records of packets for the filler, which lack only the dma-bufs. They go out
 * as they are taken, and the answers are the plugin's messages WORKING and OK. When a
 * daemon dies, the helper finds its successor and makes the plan again.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define MAX_TRIES 3	 /* of a fill whose daemon is killed */
#define MAX_PLAN (1u << 30)
#define MAX_BOS (1u << 20)

/* Records of a plan: counts of BOs and bytes, their numbers, then the bytes of a packet. */
static bool record(const struct process *p, uint64_t at, uint32_t **bos, uint32_t *count, char **data,
		   uint32_t *bytes, uint64_t *next)
{
	const struct gpucr_packet *r = (void *)(p->plan + at);

	if (p->plan_size - at < sizeof(*r))
		return false;
	at += sizeof(*r);
	if ((p->plan_size - at) / sizeof(uint32_t) < r->count)
		return false;
	*bos = (void *)(p->plan + at);
	*count = r->count;
	at += r->count * sizeof(uint32_t);
	if (p->plan_size - at < r->bytes)
		return false;
	*data = p->plan + at;
	*bytes = r->bytes;
	*next = at + ((uint64_t)r->bytes + 3) / 4 * 4;
	for (uint32_t i = 0; i < r->count; i++)
		if ((*bos)[i] >= p->num_bos)
			return false;
	return *next <= p->plan_size;
}

bool hand_over(struct process *p)
{
	uint32_t *bos, count, bytes;
	char *data;

	if (!record(p, 0, &bos, &count, &data, &bytes, &p->sent) || bytes)
		return false;
	for (uint32_t i = 0; i < count;) {
		struct gpucr_msg msg = { .type = GPUCR_BOS, .id = p - table, .first = bos[i] };

		/* A run of BOs that have one. */
		while (i < count && msg.count < GPUCR_MAX_FDS && bos[i] == msg.first + msg.count && p->bos[bos[i]] >= 0) {
			msg.count++;
			i++;
		}
		if (!msg.count)
			i++;
		else if (helper_post(link_end, &msg, &p->bos[msg.first], msg.count, 0))
			break; /* its link tells */
	}
	return true;
}

/* The daemon is gone, and nothing is known of the contents. */
static void lost(struct process *p)
{
	drop(&p->fill);
	if (link_end < 0) {
		give_up(p, "process %u: gpucr-fs plugin-helper has ended, and nobody fills its buffer objects", p->name);
		return;
	}
	if (++p->tries >= MAX_TRIES) {
		give_up(p, "process %u: the daemon that filled its buffer objects was killed %u times", p->name, p->tries);
		return;
	}
	p->state = LOST;
	p->moved = now_ms();
	tell(p, GPUCR_AGAIN, 0, NULL);
}

/* Sends packets as long as they are taken. */
static void pump(struct process *p)
{
	while (p->sent < p->plan_size) {
		uint32_t *bos, count, bytes;
		int fds[GPUCR_MAX_FDS], ret;
		uint64_t next;
		char *data;

		if (!record(p, p->sent, &bos, &count, &data, &bytes, &next) || count > GPUCR_MAX_FDS) {
			give_up(p, "process %u: the plan of gpucr-fs plugin-helper is not understood", p->name);
			return;
		}
		for (uint32_t i = 0; i < count; i++) {
			fds[i] = p->bos[bos[i]];
			if (fds[i] < 0) {
				give_up(p, "buffer object %u of process %u: the driver gave no handle to its memory", bos[i],
					p->name);
				return;
			}
		}
		ret = helper_post_bytes(p->fill, data, bytes, fds, count, MSG_DONTWAIT);
		if (ret == -EAGAIN)
			return;
		if (ret == -EPIPE || ret == -ECONNRESET) {
			lost(p);
			return;
		}
		if (ret) {
			give_up(p, "process %u: hand over buffer objects: %s", p->name, strerror(-ret));
			return;
		}
		p->sent = next;
	}
}

void begin_fills(void)
{
	uint32_t busy = 0;

	for (uint32_t i = 0; i < used; i++)
		busy += table[i].state == FILLING || table[i].state == LOST;
	for (uint32_t i = 0; i < used && busy < MAX_FILLS; i++) {
		struct process *p = &table[i];

		if (p->state != RESTORED)
			continue;
		p->moved = now_ms();
		p->complete = false;
		p->state = FILLING;
		busy++;
		if (p->fill >= 0)
			pump(p);
		else if (p->sent == p->plan_size)
			filled(p, NULL);
		else
			give_up(p, "process %u: nobody fills its buffer objects", p->name);
	}
}

void on_fill(struct process *p, short events)
{
	struct gpucr_msg msg;
	int fds[GPUCR_MAX_FDS], count, ret;
	char text[GPUCR_TEXT + 32];

	if (events & POLLOUT)
		pump(p);
	while (p->state == FILLING && (ret = helper_receive(p->fill, &msg, fds, &count, MSG_DONTWAIT))) {
		drop_all(fds, count);
		if (ret == -EPROTO) {
			give_up(p, "process %u: who fills its buffer objects is of another version than this plugin "
				   "(end the daemon of the store: another is started)", p->name);
		} else if (ret < 0) {
			lost(p);
		} else if (msg.type == GPUCR_WORKING) {
			if (msg.size != p->done)
				p->moved = now_ms();
			p->done = msg.size;
			p->complete = msg.size == msg.priv_size;
		} else if (msg.status) {
			give_up(p, "%s", msg.text);
		} else {
			snprintf(text, sizeof(text), "process %u: %s", p->name, msg.text);
			text[GPUCR_TEXT - 1] = 0;
			filled(p, text);
		}
	}
}

void on_plan(struct process *p, const struct gpucr_msg *msg, int *fds, int count)
{
	bool again = p->state == LOST;
	uint32_t *bos, some, bytes;
	struct ucred cred;
	struct stat st;
	char *data;
	socklen_t size = sizeof(cred);

	if (msg->status) {
		give_up(p, "%s", msg->text);
		drop_all(fds, count);
		return;
	}
	if (count < 1 || count > 2 || msg->size > MAX_PLAN || msg->num_bos > MAX_BOS || fstat(fds[0], &st) ||
	    (uint64_t)st.st_size < msg->size || (again && msg->num_bos != p->num_bos)) {
		drop_all(fds, count);
		give_up(p, "the plan of gpucr-fs plugin-helper is not understood");
		return;
	}
	if (again)
		munmap(p->plan, p->plan_size);
	p->plan_size = msg->size;
	p->plan = mmap(NULL, msg->size, PROT_READ, MAP_SHARED, fds[0], 0);
	if (p->plan == MAP_FAILED)
		p->plan = NULL;
	close(fds[0]);
	if (count == 2)
		p->fill = fds[1];
	if (!p->plan) {
		give_up(p, "memory for the plan of process %u: %s", msg->pid, strerror(errno));
		return;
	}
	if (again) {
		p->state = RESTORED;
		if (!record(p, 0, &bos, &some, &data, &bytes, &p->sent))
			give_up(p, "process %u: the plan of gpucr-fs plugin-helper is not understood", p->name);
		return;
	}
	p->name = msg->pid;
	p->sequential = msg->first;
	ask_helper |= msg->count;
	p->num_bos = msg->num_bos;
	p->bos = take((msg->num_bos + 1) * sizeof(*p->bos));
	for (uint32_t i = 0; p->bos && i < msg->num_bos; i++)
		p->bos[i] = -1;
	p->state = PLANNED;
	if (!p->bos || getsockopt(p->conn, SOL_SOCKET, SO_PEERCRED, &cred, &size)) {
		give_up(p, "process %u cannot be served: %s", p->name, strerror(errno));
		return;
	}
	p->pid = cred.pid;
	size = sizeof(p->pidfd);
	if (getsockopt(p->conn, SOL_SOCKET, SO_PEERPIDFD, &p->pidfd, &size))
		p->pidfd = syscall(SYS_pidfd_open, p->pid, 0);
}
