/*
 * The helper and the sockets to it.
 *
 * It is started by a child of a child, so that CRIU's handler of SIGCHLD never
 * sees it; the child between them sends no signal when it ends, and only this
 * file waits for it. The helper has the control connection as descriptor 3 and
 * nothing else of CRIU's. It ends when the control connection does.
 *
 * Tasks have no socket of their own before they are forked, may be in another
 * network namespace, and must not share a connection. So CRIU's fdstore keeps
 * one end of a socket pair over which each sends an end of a fresh pair.
 */
#define _GNU_SOURCE
#include "plugin.h"
#include "server.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int control = -1;
static int attach_id = -1; /* in fdstore */
static int helper_pidfd = -1;

bool helper_started(void)
{
	return control >= 0;
}

bool helper_gone(void)
{
	struct pollfd p = { .fd = helper_pidfd, .events = POLLIN };
	int64_t end = now_ms() + 1000, left;
	int n;

	if (helper_pidfd < 0)
		return false;
	do {
		left = end - now_ms();
		n = poll(&p, 1, left > 0 ? (int)left : 0);
	} while (n < 0 && errno == EINTR && left > 0);
	return n > 0;
}

/* Where gpucr-fs is: $GPUCR_FS, or ../../bin beside this plugin, or in PATH. */
static const char *program(char *buf, size_t size)
{
	const char *env = getenv("GPUCR_FS");
	char dir[PATH_MAX];
	Dl_info info;

	if (env && *env)
		return env;
	if (dladdr((void *)program, &info) && info.dli_fname && realpath(info.dli_fname, dir)) {
		*strrchr(dir, '/') = 0;
		if (snprintf(buf, size, "%s/../../bin/gpucr-fs", dir) < (int)size && !access(buf, X_OK))
			return buf;
	}
	return "gpucr-fs";
}

/* What becomes of the start. */
struct report {
	int pid, err; /* of the helper, or why there is none */
};

static void send_report(int fd, struct report r)
{
	while (write(fd, &r, sizeof(r)) < 0 && errno == EINTR)
		;
}

/* The child between: forks the helper and ends. */
static void be_child(const char *path, int sock, int report)
{
	char *argv[] = { "gpucr-fs", "plugin-helper", NULL };
	sigset_t none;
	int err, null, pid;

	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid) {
		send_report(report, (struct report){ .pid = pid, .err = pid < 0 ? errno : 0 });
		syscall(SYS_exit_group, 0);
	}
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	null = open("/dev/null", O_RDWR);
	/* 3 is the connection, 4 the report; neither may be overwritten first. */
	sock = fcntl(sock, F_DUPFD, 10);
	report = fcntl(report, F_DUPFD, 10);
	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
	}
	if (sock >= 0 && report >= 0 && dup2(sock, 3) == 3 && dup3(report, 4, O_CLOEXEC) == 4) {
		syscall(SYS_close_range, 5, ~0u, 0);
		if (chdir("/"))
			null = -1;
		execvpe(path, argv, environ);
	}
	err = errno;
	send_report(4, (struct report){ .err = err });
	syscall(SYS_exit_group, 1);
}

static int spawn(int sock)
{
	char buf[PATH_MAX];
	const char *path = program(buf, sizeof(buf));
	struct report r = { 0 };
	int report[2], err = 0, helper = 0;
	pid_t pid;
	ssize_t n;

	if (pipe2(report, O_CLOEXEC))
		return -errno;
	/* No exit signal: nobody but the wait below hears of it. */
	pid = syscall(SYS_clone, 0, 0, 0, 0, 0);
	if (!pid)
		be_child(path, sock, report[1]);
	close(report[1]);
	if (pid < 0) {
		err = errno;
		close(report[0]);
		return -err;
	}
	while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
		;
	/* The pipe closes when the program runs. */
	while ((n = read(report[0], &r, sizeof(r))) == sizeof(r) || (n < 0 && errno == EINTR)) {
		if (n > 0 && r.pid > 0)
			helper = r.pid;
		if (n > 0 && r.err)
			err = r.err;
	}
	close(report[0]);
	if (n || err || !helper) {
		say(LOG_ERROR, "Error: start %s: %s (name the program in GPUCR_FS)", path, strerror(err));
		return -(err ? err : EIO);
	}
	helper_pidfd = syscall(SYS_pidfd_open, helper, 0);
	return 0;
}

int helper_start(int stage)
{
	struct gpucr_msg hello = { .type = GPUCR_HELLO, .id = stage, .count = CRIU_HOOKS };
	struct timeval silence = { .tv_sec = SILENCE_SECONDS };
	int pair[2], attach[2] = { -1, -1 }, link[2] = { -1, -1 }, fds[2], n = 0, ret;

	if (control >= 0)
		return 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return fail("socketpair: %s", strerror(errno));
	fds[n++] = criu_get_image_dir();
	if (stage == STAGE_RESTORE) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, attach) ||
		    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link)) {
			ret = fail("socketpair: %s", strerror(errno));
			goto out;
		}
		fds[n++] = link[1];
		ret = server_sockets(attach[1], link[0]);
		if (ret)
			goto out;
		attach_id = fdstore_add(attach[0]);
		if (attach_id < 0) {
			ret = fail("the socket for tasks cannot be stored");
			goto out;
		}
	}
	ret = spawn(pair[1]);
	if (ret)
		goto out;
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence));
	setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof(silence));
	control = fcntl(pair[0], F_DUPFD_CLOEXEC, 3);
	if (control < 0)
		ret = fail("dup: %s", strerror(errno));
	else
		ret = helper_tell(&hello, fds, n);
out:
	for (int i = 0; i < 2; i++) {
		close(pair[i]);
		if (attach[i] >= 0)
			close(attach[i]);
		if (link[i] >= 0)
			close(link[i]);
	}
	return ret;
}

int helper_attach(void)
{
	struct gpucr_msg msg = { .type = GPUCR_ATTACH };
	struct timeval silence = { .tv_sec = SILENCE_SECONDS };
	int pair[2], sock, ret;

	sock = fdstore_get(attach_id);
	if (sock < 0)
		return fail("the socket to the helper is not in the fdstore");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		close(sock);
		return fail("socketpair: %s", strerror(errno));
	}
	ret = helper_send(sock, &msg, &pair[1], 1);
	close(sock);
	close(pair[1]);
	if (ret) {
		close(pair[0]);
		return ret;
	}
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence));
	setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof(silence));
	return pair[0];
}

int helper_post_bytes(int sock, const void *bytes, size_t size, const int *fds, int count, int flags)
{
	struct iovec iov = { (void *)bytes, size };
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GPUCR_MAX_FDS * sizeof(int))];
	} control_data;
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (count) {
		struct cmsghdr *c;

		memset(&control_data, 0, sizeof(control_data));
		hdr.msg_control = control_data.buf;
		hdr.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c = CMSG_FIRSTHDR(&hdr);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	do
		n = sendmsg(sock, &hdr, MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == size ? 0 : -EIO;
}

int helper_post(int sock, const struct gpucr_msg *msg, const int *fds, int count, int flags)
{
	struct gpucr_msg out = *msg;

	out.magic = GPUCR_MAGIC;
	return helper_post_bytes(sock, &out, sizeof(out), fds, count, flags);
}

int helper_send(int sock, const struct gpucr_msg *msg, const int *fds, int count)
{
	int ret = helper_post(sock, msg, fds, count, 0);

	if (ret)
		say(LOG_ERROR, "Error: gpucr-fs plugin-helper does not listen: %s", strerror(-ret));
	return ret;
}

int helper_send_bos(int sock, const int32_t *fds, size_t stride, uint32_t count)
{
	int batch[GPUCR_MAX_FDS];

	for (uint32_t i = 0; i < count;) {
		struct gpucr_msg msg = { .type = GPUCR_BOS, .first = i };
		int ret;

		/* A run of BOs that have one; first and count tell which. */
		for (; i < count && msg.count < GPUCR_MAX_FDS; i++) {
			int fd = *(const int32_t *)((const char *)fds + i * stride);

			if (fd < 0)
				break;
			batch[msg.count++] = fd;
		}
		if (!msg.count) {
			i++;
			continue;
		}
		ret = helper_send(sock, &msg, batch, msg.count);
		if (ret)
			return ret;
	}
	return 0;
}

int helper_receive(int sock, struct gpucr_msg *msg, int *fds, int *count, int flags)
{
	struct iovec iov = { msg, sizeof(*msg) };
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GPUCR_MAX_FDS * sizeof(int))];
	} control_data;
	struct msghdr hdr = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control_data.buf, .msg_controllen = sizeof(control_data),
	};
	struct cmsghdr *c;
	ssize_t n;

	*count = 0;
	do
		n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC | flags);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	c = CMSG_FIRSTHDR(&hdr);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		*count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), *count * sizeof(int));
	}
	if (n == sizeof(*msg) && msg->magic == GPUCR_MAGIC && !(hdr.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
		msg->text[GPUCR_TEXT - 1] = 0;
		return 1;
	}
	while (*count)
		close(fds[--*count]);
	if (!n)
		return -EPIPE;
	return hdr.msg_flags & MSG_CTRUNC ? -EMFILE : -EPROTO;
}

int helper_answer(int sock, struct gpucr_msg *msg, int *fd)
{
	int fds[GPUCR_MAX_FDS], count;

	*fd = -1;
	do {
		int ret = helper_receive(sock, msg, fds, &count, 0);

		if (!ret) {
			say(LOG_ERROR, "Error: gpucr-fs plugin-helper has not answered for %d s", SILENCE_SECONDS);
			return -EAGAIN;
		}
		if (ret == -EPROTO) {
			say(LOG_ERROR, "Error: gpucr-fs plugin-helper is of another version than this plugin "
				       "(name the right one in GPUCR_FS)");
			return ret;
		}
		if (ret < 0) {
			say(LOG_ERROR, "Error: gpucr-fs plugin-helper has ended: %s", strerror(-ret));
			return ret;
		}
		while (count > 1)
			close(fds[--count]);
		if (count)
			*fd = fds[0];
	} while (msg->type == GPUCR_WORKING);
	if (msg->status && msg->status != -ENOTSUP && msg->status != -ENOENT)
		say(LOG_ERROR, "Error: %s", msg->text);
	else if (!msg->status && msg->text[0])
		say(LOG_INFO, "%s", msg->text);
	return msg->status < 0 ? msg->status : 0;
}

int helper_ask(struct gpucr_msg *msg)
{
	return helper_ask_about(msg, NULL, 0);
}

int helper_ask_about(struct gpucr_msg *msg, const int *fds, int count)
{
	int fd, ret = helper_send(control, msg, fds, count);

	if (!ret)
		ret = helper_answer(control, msg, &fd);
	return ret;
}

int helper_ask_objects(struct gpucr_msg *msg, int node)
{
	int fd, ret = helper_send(control, msg, &node, 1);

	if (!ret)
		ret = helper_answer(control, msg, &fd);
	if (!ret)
		ret = export_objects(control, node, msg, &fd);
	return ret;
}

int helper_tell(const struct gpucr_msg *msg, const int *fds, int count)
{
	return helper_send(control, msg, fds, count);
}

int helper_tell_bos(const int32_t *fds, size_t stride, uint32_t count)
{
	return helper_send_bos(control, fds, stride, count);
}

int helper_bye(int status, uint32_t paused)
{
	struct gpucr_msg msg = { .type = GPUCR_BYE, .status = status, .count = paused };
	int ret;

	/* It has let go of the images before it answers. */
	ret = helper_ask(&msg);
	if (ret)
		say(LOG_WARN, "gpucr-fs plugin-helper did not say goodbye");
	close(control);
	control = -1;
	return ret;
}
