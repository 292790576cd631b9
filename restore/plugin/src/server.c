/*
 * The restore server: a thread of the main CRIU process that owns what belongs to
 * this restore alone. Tasks attach to it. It has the table of processes and their
 * buffer objects, hands these to the filler, and knows what is filled and which
 * task may go on.
 *
 *	task:    FILE ------------ RESTORE ioctl -> BOS... RESTORED -> goes on
 *	server:  -> helper: PLAN                    -> the fill
 *	CRIU:                                                   RESUME waits for every fill
 *
 * The helper reads images and decides: it answers FILE, and gives the server a plan:
 * a connection to the filler (the daemon of the images' store, or the helper itself)
 * where the fill has been announced, and packets for it that lack only the dma-bufs.
 * Whatever else a task asks for, the helper takes over, and it brings what follows a
 * process that runs: the server ends with CRIU.
 *
 * A second thread in CRIU may not do much. It has all signals blocked, or CRIU's
 * handler of SIGCHLD would run in it; CRIU's thread leaves the file system that both
 * share (unshare), or CRIU could not change its mount namespace; it writes no log,
 * for CRIU's is not made for two; and it takes memory by mmap alone, for CRIU forks
 * children that must not find malloc locked.
 *
 * mu guards the table. The server has it but while it polls.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_t thread;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool running, stopping;
static int tasks_end = -1, wake = -1;
int link_end = -1;

struct process *table;
uint32_t used;
bool ask_helper;
static struct pollfd *polls;
static uint32_t room;
static char why[GPUCR_TEXT]; /* of the first failure */
static bool told;	     /* the log has it */

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void *take(size_t size)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

static void *grow(void *old, size_t from, size_t to)
{
	void *mem = old ? mremap(old, from, to, MREMAP_MAYMOVE) : take(to);

	return mem == MAP_FAILED ? NULL : mem;
}

void drop(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void drop_all(int *fds, int n)
{
	while (n)
		drop(&fds[--n]);
}

static struct process *new_process(int conn)
{
	struct process *p;

	for (uint32_t i = 0; i < used; i++)
		if (table[i].state == FREE) {
			p = &table[i];
			goto out;
		}
	if (used == room) {
		uint32_t more = room ? 2 * room : 64;
		void *t = grow(table, room * sizeof(*table), more * sizeof(*table));
		void *q;

		if (t)
			table = t;
		q = t ? grow(polls, (3 + 3 * room) * sizeof(*polls), (3 + 3 * more) * sizeof(*polls)) : NULL;
		if (!q)
			return NULL;
		polls = q;
		room = more;
	}
	p = &table[used++];
out:
	*p = (struct process){ .state = NEW, .pidfd = -1, .conn = conn, .fill = -1 };
	return p;
}

/* Lets go of a process's buffer objects and of what it takes to fill them. */
static void release(struct process *p)
{
	drop(&p->pidfd);
	drop(&p->conn);
	drop(&p->fill);
	if (p->bos) {
		drop_all(p->bos, p->num_bos);
		munmap(p->bos, (p->num_bos + 1) * sizeof(*p->bos));
		p->bos = NULL;
	}
	if (p->plan)
		munmap(p->plan, p->plan_size);
	p->plan = NULL;
}

void tell(const struct process *p, enum gpucr_type type, int status, const char *text)
{
	struct gpucr_msg msg = { .type = type, .id = p - table, .status = status };

	if (text)
		snprintf(msg.text, sizeof(msg.text), "%s", text);
	if (link_end >= 0)
		helper_post(link_end, &msg, NULL, 0, 0);
}

/* The answer that a task waits for. */
static void answer(struct process *p, int status, const char *text)
{
	struct gpucr_msg msg = { .type = GPUCR_OK, .status = status };

	if (text)
		snprintf(msg.text, sizeof(msg.text), "%s", text);
	if (p->conn >= 0)
		helper_post(p->conn, &msg, NULL, 0, MSG_DONTWAIT);
	p->waits = false;
	drop(&p->conn);
}

void give_up(struct process *p, const char *fmt, ...)
{
	char text[GPUCR_TEXT];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (!why[0])
		memcpy(why, text, sizeof(why));
	if (p->conn >= 0)
		answer(p, -EIO, text);
	if (p->state >= ASKED)
		tell(p, GPUCR_FILLED, -EIO, text);
	p->state = FAILED;
	release(p);
}

void filled(struct process *p, const char *text)
{
	tell(p, GPUCR_FILLED, 0, text);
	if (p->waits)
		answer(p, 0, text);
	p->state = FILLED;
	release(p);
}

/* An open render node for a task whose container calls it otherwise. */
static void send_node(struct process *p, uint32_t minor)
{
	struct gpucr_msg msg = { .type = GPUCR_OK };
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/dev/dri/renderD%u", minor);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		msg.status = -EIO;
		snprintf(msg.text, sizeof(msg.text), "open %s: %s", path, strerror(errno));
	}
	helper_post(p->conn, &msg, &fd, fd >= 0, MSG_DONTWAIT);
	drop(&fd);
}

static void on_bos(struct process *p, const struct gpucr_msg *msg, int *fds, int count)
{
	bool ok = msg->count == (uint32_t)count && (uint64_t)msg->first + count <= p->num_bos;

	for (int i = 0; i < count && ok; i++)
		ok = p->bos[msg->first + i] < 0;
	if (!ok) {
		drop_all(fds, count);
		give_up(p, "process %u: it hands over buffer objects that its image does not have", p->name);
		return;
	}
	for (int i = 0; i < count; i++)
		p->bos[msg->first + i] = fds[i];
}

/* The question of a task goes to the helper, with the connection. */
static void forward(struct process *p, struct gpucr_msg *msg)
{
	if (msg->type == GPUCR_FILE)
		msg->minor = p - table;
	if (helper_post(link_end, msg, &p->conn, 1, 0)) {
		p->state = ASKED;
		give_up(p, "gpucr-fs plugin-helper has ended");
		return;
	}
	p->state = ASKED;
	if (msg->type != GPUCR_FILE) {
		release(p);
		p->state = FREE;
	}
}

/* What a task has to say. */
static void on_task(struct process *p)
{
	struct gpucr_msg msg;
	int fds[GPUCR_MAX_FDS], count;
	int ret = helper_receive(p->conn, &msg, fds, &count, MSG_DONTWAIT);

	if (!ret)
		return;
	if (p->state == NEW) {
		drop_all(fds, count);
		if (ret < 0) {
			release(p);
			p->state = FREE;
		} else {
			forward(p, &msg);
		}
		return;
	}
	if (p->state != PLANNED) {
		/* It has closed the connection, all being said; or waits for its fill. */
		drop_all(fds, count);
		if (p->waits)
			give_up(p, "process %u has ended", p->name);
		else
			drop(&p->conn);
		return;
	}
	if (ret > 0 && msg.type == GPUCR_BOS) {
		on_bos(p, &msg, fds, count);
		return;
	}
	drop_all(fds, count);
	if (ret == -EMFILE)
		give_up(p, "process %u: its buffer objects are more than this CRIU may have open (ulimit -n)", p->name);
	else if (ret < 0)
		give_up(p, "process %u: it ended before its buffer objects were handed over", p->name);
	else if (msg.type == GPUCR_NODE)
		send_node(p, msg.minor);
	else if (msg.type != GPUCR_RESTORED)
		give_up(p, "process %u: message %u before RESTORED", p->name, msg.type);
	else if (msg.status)
		give_up(p, "process %u: the driver refused the restore: %s", p->name, strerror(-msg.status));
	else if (!hand_over(p))
		give_up(p, "process %u: the plan of gpucr-fs plugin-helper is not understood", p->name);
	else {
		tell(p, GPUCR_RESTORED, 0, NULL);
		p->state = RESTORED;
		p->waits = true;
		if (!p->sequential)
			answer(p, 0, NULL);
	}
}

static void on_helper(void)
{
	struct gpucr_msg msg;
	int fds[GPUCR_MAX_FDS], count, ret;

	while (link_end >= 0 && (ret = helper_receive(link_end, &msg, fds, &count, MSG_DONTWAIT))) {
		struct process *p = ret > 0 && msg.id < used ? &table[msg.id] : NULL;

		if (ret < 0) {
			drop(&link_end);
			for (uint32_t i = 0; i < used; i++)
				if (table[i].state == ASKED || table[i].state == LOST)
					give_up(&table[i], "gpucr-fs plugin-helper has ended");
			return;
		}
		if (p && msg.type == GPUCR_PLAN && (p->state == ASKED || p->state == LOST)) {
			on_plan(p, &msg, fds, count);
			continue;
		}
		drop_all(fds, count);
		if (p && msg.type == GPUCR_TAKEN && p->state == ASKED) {
			ask_helper |= msg.count;
			release(p);
			p->state = FREE;
		}
	}
}

static void on_attach(void)
{
	struct gpucr_msg msg;
	int fds[GPUCR_MAX_FDS], count, ret;

	while ((ret = helper_receive(tasks_end, &msg, fds, &count, MSG_DONTWAIT))) {
		if (ret > 0 && msg.type == GPUCR_ATTACH && count == 1 && new_process(fds[0]))
			continue;
		drop_all(fds, count);
		if (ret == -EPIPE) {
			drop(&tasks_end);
			return;
		}
	}
}

/* Whether the fill of a process goes on; a word to a task that waits for it. */
static void look_after(struct process *p)
{
	struct gpucr_msg working = { .type = GPUCR_WORKING };
	int64_t now = now_ms();

	if (p->waits && p->conn >= 0)
		helper_post(p->conn, &working, NULL, 0, MSG_DONTWAIT);
	if ((p->state != FILLING && p->state != LOST) || now - p->moved <= STALL_MS)
		return;
	if (p->state == FILLING && p->complete)
		give_up(p, "process %u: its buffer objects are filled, but the fill has not ended for %d s", p->name,
			STALL_MS / 1000);
	else
		give_up(p, "process %u: no byte of its buffer objects has moved for %d s", p->name, STALL_MS / 1000);
}

static int add_poll(int n, int fd, short events)
{
	polls[n] = (struct pollfd){ .fd = fd, .events = events };
	return n + 1;
}

/* Waits for what happens next, and deals with it. */
static void turn(void)
{
	static int64_t looked;
	int n = 0, timeout = -1, k;
	bool look;

	n = add_poll(n, wake, POLLIN);
	n = add_poll(n, tasks_end, POLLIN);
	n = add_poll(n, link_end, POLLIN);
	for (uint32_t i = 0; i < used; i++) {
		struct process *p = &table[i];
		bool asked = p->state == ASKED;

		n = add_poll(n, asked ? -1 : p->conn, POLLIN);
		n = add_poll(n, p->state == FILLING ? p->fill : -1, POLLIN | (p->sent < p->plan_size ? POLLOUT : 0));
		n = add_poll(n, p->state >= RESTORED && p->state <= LOST ? p->pidfd : -1, POLLIN);
		if (p->state >= RESTORED && p->state <= LOST)
			timeout = 1000;
	}
	pthread_mutex_unlock(&mu);
	n = poll(polls, n, timeout);
	pthread_mutex_lock(&mu);
	if (n < 0)
		return;
	look = now_ms() - looked >= 1000;
	if (look)
		looked = now_ms();
	k = 3;
	for (uint32_t i = 0, known = used; i < known; i++, k += 3) {
		struct process *p = &table[i];

		if (polls[k].revents)
			on_task(p);
		if (polls[k + 1].revents && p->state == FILLING)
			on_fill(p, polls[k + 1].revents);
		if (polls[k + 2].revents && p->state >= RESTORED && p->state <= LOST)
			give_up(p, "process %u has ended", p->name);
		if (look)
			look_after(p);
	}
	if (polls[2].revents)
		on_helper();
	if (polls[1].revents)
		on_attach();
	begin_fills();
	pthread_cond_broadcast(&changed);
}

static void *serve(void *none)
{
	(void)none;
	pthread_mutex_lock(&mu);
	while (!stopping)
		turn();
	for (uint32_t i = 0; i < used; i++)
		release(&table[i]);
	pthread_mutex_unlock(&mu);
	return NULL;
}

int server_sockets(int tasks, int link)
{
	tasks_end = fcntl(tasks, F_DUPFD_CLOEXEC, 3);
	link_end = fcntl(link, F_DUPFD_CLOEXEC, 3);
	return tasks_end < 0 || link_end < 0 ? fail("dup: %s", strerror(errno)) : 0;
}

int server_start(void)
{
	struct timeval silence = { .tv_sec = SILENCE_SECONDS };
	sigset_t all, before;
	int ret;

	setsockopt(link_end, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof(silence));
	wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	polls = take(3 * sizeof(*polls));
	if (wake < 0 || !polls)
		return fail("the restore server cannot be started: %s", strerror(errno));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = pthread_create(&thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!ret && unshare(CLONE_FS))
		ret = errno;
	if (ret)
		return fail("the restore server cannot be started: %s", strerror(ret));
	running = true;
	return 0;
}

static bool undone(void)
{
	for (uint32_t i = 0; i < used; i++)
		if (table[i].state >= ASKED && table[i].state <= LOST)
			return true;
	return false;
}

int server_gate(int pid, struct gpucr_msg *msg)
{
	int ret = -ENOENT;

	pthread_mutex_lock(&mu);
	while (undone())
		pthread_cond_wait(&changed, &mu);
	msg->id = msg->count = 0;
	for (uint32_t i = 0; i < used; i++) {
		if (table[i].state != FILLED)
			continue;
		if (table[i].pid == (uint32_t)pid)
			ret = 0;
		else if (!table[i].resumed)
			msg->count++;
	}
	if (ask_helper)
		ret = 1;
	if (why[0]) {
		memcpy(msg->text, why, sizeof(why));
		ret = -EIO;
	}
	pthread_mutex_unlock(&mu);
	if (ret == -EIO) {
		say(LOG_ERROR, "Error: %s", msg->text);
		told = true;
	}
	return ret;
}

void server_resumed(int pid)
{
	pthread_mutex_lock(&mu);
	for (uint32_t i = 0; i < used; i++)
		if (table[i].pid == (uint32_t)pid)
			table[i].resumed = true;
	pthread_mutex_unlock(&mu);
}

void server_stop(void)
{
	uint64_t one = 1;

	if (!running)
		return;
	pthread_mutex_lock(&mu);
	stopping = true;
	pthread_mutex_unlock(&mu);
	if (write(wake, &one, sizeof(one)) < 0)
		say(LOG_WARN, "the restore server is not told of the end: %s", strerror(errno));
	pthread_join(thread, NULL);
	running = false;
	/* CRIU has failed before anybody asked. This may be why, or a consequence. */
	if (why[0] && !told)
		say(LOG_WARN, "restore server: %s", why);
	drop(&wake);
	drop(&tasks_end);
	drop(&link_end);
}
