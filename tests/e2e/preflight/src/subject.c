/*
 * Has one thing that criu does not dump, or dumps with an option only, says "ready" and waits for ever.
 *
 *     subject KIND [ARGUMENT]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static const char *kind;
static const char *arg;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", kind, what, strerror(errno));
	exit(1);
}

static long must(long r, const char *what)
{
	if (r < 0)
		fail(what);
	return r;
}

static void *map(size_t size, int flags, int fd)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

static void fill(int fd, size_t size)
{
	char block[4096];
	memset(block, 7, sizeof block);
	for (size_t n = 0; n < size; n += sizeof block)
		must(write(fd, block, sizeof block), "write");
}

/* ring leaves descriptor and mapping, or one of them. */
static void ring(int keep_fd, int keep_map)
{
	struct io_uring_params p = {0};
	int fd = (int)must(syscall(SYS_io_uring_setup, 8, &p), "io_uring_setup");
	if (keep_map)
		map(p.sq_off.array + p.sq_entries * sizeof(unsigned), MAP_SHARED | MAP_POPULATE, fd);
	if (!keep_fd)
		close(fd);
}

static int listener(int proto, struct sockaddr_in *a)
{
	socklen_t len = sizeof *a;
	int fd = (int)must(socket(AF_INET, SOCK_STREAM, proto), "socket");
	memset(a, 0, sizeof *a);
	a->sin_family = AF_INET;
	a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must(bind(fd, (struct sockaddr *)a, sizeof *a), "bind");
	must(listen(fd, 4), "listen");
	must(getsockname(fd, (struct sockaddr *)a, &len), "getsockname");
	return fd;
}

static void connection(int accepted)
{
	struct sockaddr_in a;
	int l = listener(0, &a), c = (int)must(socket(AF_INET, SOCK_STREAM, 0), "socket");
	must(connect(c, (struct sockaddr *)&a, sizeof a), "connect");
	if (accepted)
		must(accept(l, NULL, NULL), "accept");
	else
		close(c);
}

static void unix_client(const char *path, int type)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = (int)must(socket(AF_UNIX, type, 0), "socket");
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	must(connect(fd, (struct sockaddr *)&a, sizeof a), "connect");
	char accepted;
	if (type == SOCK_STREAM)
		must(read(fd, &accepted, 1), "read");
}

static int deleted(size_t size)
{
	int fd = (int)must(open(arg, O_RDWR | O_CREAT | O_TRUNC, 0600), arg);
	fill(fd, size);
	must(unlink(arg), "unlink");
	return fd;
}

static void *forever(void *p)
{
	for (;;)
		pause();
	return p;
}

static int child(void)
{
	int pid = (int)must(fork(), "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return 0;
	}
	return pid;
}

static void wait_for_file(const char *path)
{
	while (access(path, F_OK))
		usleep(1000);
}

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

/* What criu dumps without an option. */
static void harmless(void)
{
	int fds[2], n;
	struct sockaddr_in a;
	struct epoll_event e = {.events = EPOLLIN};
	sigset_t mask;
	must(pipe(fds), "pipe");
	must(n = eventfd(0, 0), "eventfd");
	int ep = (int)must(epoll_create1(0), "epoll");
	must(epoll_ctl(ep, EPOLL_CTL_ADD, n, &e), "epoll_ctl");
	must(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd");
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	must(signalfd(-1, &mask, 0), "signalfd");
	must(inotify_init1(0), "inotify");
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair");
	must(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), "socketpair");
	must(socket(AF_INET, SOCK_DGRAM, 0), "udp");
	must(socket(AF_INET6, SOCK_STREAM, 0), "tcp6");
	must(socket(AF_NETLINK, SOCK_RAW, 0), "netlink");
	listener(0, &a);
	int m = (int)must(memfd_create("m", 0), "memfd");
	must(ftruncate(m, 1 << 16), "ftruncate");
	map(1 << 16, MAP_SHARED, m);
	map(1 << 16, MAP_SHARED | MAP_ANONYMOUS, -1);
	map(1 << 16, MAP_PRIVATE, (int)must(open("/dev/zero", O_RDWR), "/dev/zero"));
	must(open("/dev/urandom", O_RDONLY), "/dev/urandom");
	map(4096, MAP_SHARED, deleted(4096));
	pthread_t t;
	pthread_create(&t, NULL, forever, NULL);
	int pid = child();
	if (pid == 0) {
		setsid();
		forever(NULL);
	}
	must(syscall(SYS_pidfd_open, pid, 0), "pidfd_open");
	if (fork() == 0)
		_exit(0); /* a zombie */
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	kind = argv[1];
	arg = argc > 2 ? argv[2] : "";
#define IS(name) (!strcmp(kind, name))
	if (IS("harmless")) {
		harmless();
	} else if (IS("uring")) {
		ring(1, 1);
	} else if (IS("uring-fd")) {
		ring(1, 0);
	} else if (IS("uring-mapping")) {
		ring(0, 1);
	} else if (IS("perf")) {
		struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_CPU_CLOCK};
		must(syscall(SYS_perf_event_open, &a, 0, -1, -1, 0), "perf_event_open");
	} else if (IS("userfaultfd")) {
		must(syscall(SYS_userfaultfd, O_CLOEXEC), "userfaultfd");
	} else if (IS("device")) {
		must(open(arg, O_RDONLY), arg);
	} else if (IS("device-mapping")) {
		int fd = (int)must(open(arg, O_RDONLY), arg);
		void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED)
			fail("mmap");
		close(fd);
	} else if (IS("pidfd-outside")) {
		must(syscall(SYS_pidfd_open, getppid(), 0), "pidfd_open");
	} else if (IS("pidfd-thread")) {
		must(syscall(SYS_pidfd_open, getpid(), O_EXCL), "pidfd_open");
	} else if (IS("tcp")) {
		connection(1);
	} else if (IS("tcp-backlog")) {
		connection(0);
	} else if (IS("mptcp")) {
		struct sockaddr_in a;
		listener(IPPROTO_MPTCP, &a);
	} else if (IS("vsock")) {
		must(socket(AF_VSOCK, SOCK_STREAM, 0), "socket");
	} else if (IS("unix-stream")) {
		unix_client(arg, SOCK_STREAM);
	} else if (IS("unix-dgram")) {
		unix_client(arg, SOCK_DGRAM);
	} else if (IS("ghost")) {
		deleted(2 << 20);
	} else if (IS("ghost-mapping")) {
		int fd = deleted(2 << 20);
		map(2 << 20, MAP_SHARED, fd);
		close(fd);
	} else if (IS("linked")) {
		char other[4096];
		int fd = (int)must(open(arg, O_RDWR | O_CREAT | O_TRUNC, 0600), arg);
		snprintf(other, sizeof other, "%s.other", arg);
		fill(fd, 4096);
		must(link(arg, other), "link");
		must(unlink(arg), "unlink");
	} else if (IS("flock")) {
		must(flock((int)must(open(arg, O_RDWR | O_CREAT, 0600), arg), LOCK_EX), "flock");
	} else if (IS("posix-lock")) {
		struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
		must(fcntl((int)must(open(arg, O_RDWR | O_CREAT, 0600), arg), F_SETLK, &l), "fcntl");
	} else if (IS("sysv")) {
		int id = (int)must(shmget(IPC_PRIVATE, 4096, 0600), "shmget");
		if (shmat(id, NULL, 0) == (void *)-1)
			fail("shmat");
		shmctl(id, IPC_RMID, NULL);
	} else if (IS("secret")) {
		int fd = (int)must(syscall(SYS_memfd_secret, 0), "memfd_secret");
		must(ftruncate(fd, 4096), "ftruncate");
		*(char *)map(4096, MAP_SHARED, fd) = 1;
	} else if (IS("traced")) {
		int pid = child();
		if (pid == 0) {
			/* The child traces its parent. */
			must(ptrace(PTRACE_SEIZE, getppid(), 0, 0), "ptrace");
			ready();
			forever(NULL);
		}
		forever(NULL);
	} else if (IS("half-dead")) {
		pthread_t t;
		pthread_create(&t, NULL, forever, NULL);
		ready();
		pthread_exit(NULL);
	} else if (IS("vfork")) {
		ready();
		if (vfork() == 0) {
			for (;;)
				pause();
		}
	} else if (IS("nested-ipc")) {
		if (child() == 0) {
			must(unshare(CLONE_NEWIPC), "unshare");
			ready();
			forever(NULL);
		}
		forever(NULL);
	} else if (IS("lazy-unmounted")) {
		/* argument: a folder; the file of a tmpfs over it, which is unmounted then */
		char path[4096];
		snprintf(path, sizeof path, "%s/file", arg);
		must(open(path, O_RDWR | O_CREAT, 0600), path);
		ready();
		forever(NULL);
	} else if (IS("terminal")) {
		must(open(arg, O_RDWR | O_NOCTTY), arg);
	} else if (IS("idle")) {
	} else if (IS("when")) {
		wait_for_file(arg);
	} else {
		fprintf(stderr, "no kind %s\n", kind);
		return 2;
	}
	ready();
	forever(NULL);
}
