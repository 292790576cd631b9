/*
 * A process that notices when it is tampered with: threads in every kind of waiting, and threads that keep known
 * values in all registers. It says "ready PID", then counts rounds in shared memory at its argument, a file of 4096
 * bytes; a thread that finds something wrong writes what, at byte 64, and ends the process. The handler of SIGUSR1 says
 * at byte 48 that it runs, and lasts until byte 56 is not 0. Its arguments: the file, which thread is the first one,
 * and which one has a seccomp filter that allows all (none without it).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6 };
static volatile uint64_t *rounds;
static volatile unsigned ticks;

static void wrong(const char *what)
{
	snprintf((char *)rounds + 64, 200, "%s: %s", what, strerror(errno));
	_exit(3);
}

/*
 * turn loads all registers, the red zone and a vector register, waits a while without the kernel, and looks whether all
 * are the same.
 */
static long turn(void)
{
	long bad;
	__asm__ volatile(
		"movq %%rsp, %%r8\n\t"
		"movq $0x1122334455667788, %%rax\n\t movq %%rax, -8(%%rsp)\n\t movq %%rax, -120(%%rsp)\n\t"
		"movq %%rax, %%xmm7\n\t"
		"movq $3, %%rbx\n\t movq $5, %%rdx\n\t movq $6, %%rsi\n\t movq $7, %%rdi\n\t movq $9, %%r9\n\t"
		"movq $10, %%r10\n\t movq $11, %%r11\n\t movq $12, %%r12\n\t movq $13, %%r13\n\t movq $14, %%r14\n\t"
		"movq $15, %%r15\n\t"
		"movq $20000, %%rcx\n\t"
		"1: subq $1, %%rcx\n\t jnz 1b\n\t"
		"xorq %%rcx, %%rcx\n\t"
		"cmpq %%rax, -8(%%rsp)\n\t jne 2f\n\t cmpq %%rax, -120(%%rsp)\n\t jne 2f\n\t movq %%xmm7, %%rcx\n\t"
		"cmpq %%rax, %%rcx\n\t jne 2f\n\t"
		"movq $0x1122334455667788, %%rcx\n\t cmpq %%rax, %%rcx\n\t jne 2f\n\t"
		"cmpq %%rsp, %%r8\n\t jne 2f\n\t cmpq $3, %%rbx\n\t jne 2f\n\t cmpq $5, %%rdx\n\t jne 2f\n\t"
		"cmpq $6, %%rsi\n\t jne 2f\n\t"
		"cmpq $7, %%rdi\n\t jne 2f\n\t cmpq $9, %%r9\n\t jne 2f\n\t cmpq $10, %%r10\n\t jne 2f\n\t"
		"cmpq $11, %%r11\n\t jne 2f\n\t"
		"cmpq $12, %%r12\n\t jne 2f\n\t cmpq $13, %%r13\n\t jne 2f\n\t cmpq $14, %%r14\n\t jne 2f\n\t"
		"cmpq $15, %%r15\n\t jne 2f\n\t"
		"xorl %%eax, %%eax\n\t jmp 3f\n\t"
		"2: movl $1, %%eax\n\t"
		"3:"
		: "=a"(bad)
		:
		: "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm7", "memory",
			"cc");
	return bad;
}

static void count(int who) { rounds[who]++; }

/* registers never enters the kernel. */
static void registers(void)
{
	if (turn())
		wrong("registers");
}

/* sleeps must last: a nanosleep that was interrupted goes on with what is left. */
static void sleeps(void)
{
	struct timespec a, b, t = {.tv_nsec = 2000000}, left = {0};
	clock_gettime(CLOCK_MONOTONIC, &a);
	if (nanosleep(&t, &left))
		wrong("nanosleep");
	clock_gettime(CLOCK_MONOTONIC, &b);
	if ((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec < 2000000)
		wrong("nanosleep was short");
}

static int pipes[2][2];

/* reads waits for its neighbour's bytes, which come in order. */
static void reads(void)
{
	static unsigned char want;
	unsigned char got;
	if (read(pipes[0][0], &got, 1) != 1 || got != want++)
		wrong("read");
	if (write(pipes[1][1], &got, 1) != 1)
		wrong("write back");
}

static void writes(void)
{
	static unsigned char next;
	unsigned char back;
	struct pollfd p = {.fd = pipes[1][0], .events = POLLIN};
	if (write(pipes[0][1], &next, 1) != 1)
		wrong("write");
	if (poll(&p, 1, 60000) != 1 || read(pipes[1][0], &back, 1) != 1 || back != next++)
		wrong("answer");
}

static uint32_t word;

/* futexes wait for a word that never changes, with a limit: restarted by restart_syscall. */
static void futexes(void)
{
	struct timespec t = {.tv_nsec = 3000000};
	if (syscall(SYS_futex, &word, 128, 0, &t, NULL, 0) != -1 || errno != ETIMEDOUT)
		wrong("futex");
}

static void calls(void)
{
	static pid_t self;
	if (!self)
		self = getpid();
	if (syscall(SYS_getpid) != self || syscall(SYS_getppid) <= 0)
		wrong("getpid");
}

static void tick(int sig)
{
	int e = errno;
	(void)sig;
	ticks++;
	errno = e;
}

/* lasts is a handler that comes back when it is told to. */
static void lasts(int sig)
{
	int e = errno;
	(void)sig;
	rounds[6] = 1;
	while (!rounds[7])
		usleep(1000);
	errno = e;
}

static void (*const kinds[THREADS])(void) = {registers, sleeps, reads, writes, futexes, calls};

static int filtered = -1;

static void filter(void)
{
	struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog p = {1, &all};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p))
		wrong("seccomp");
}

static void *run(void *arg)
{
	int who = (int)(intptr_t)arg;
	sigset_t s;
	if (who == filtered)
		filter();
	sigemptyset(&s);
	sigaddset(&s, SIGALRM);
	/* A signal is for the first thread alone, which makes the injected calls. */
	if (who)
		pthread_sigmask(SIG_BLOCK, &s, NULL);
	for (;;) {
		kinds[who]();
		count(who);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct itimerval every = {{0, 300}, {0, 300}};
	struct sigaction act = {.sa_handler = tick, .sa_flags = SA_RESTART};
	pthread_t t;
	int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
	int first = argc > 2 ? atoi(argv[2]) : 0;
	if (argc > 3)
		filtered = atoi(argv[3]);
	rounds = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (rounds == MAP_FAILED || pipe(pipes[0]) || pipe(pipes[1]))
		return 1;
	for (int i = 0; i < THREADS; i++)
		if (i != first)
			pthread_create(&t, NULL, run, (void *)(intptr_t)i);
	struct sigaction slow = {.sa_handler = lasts, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &slow, NULL);
	if (first == 0) { /* signals all the time, to who computes */
		sigaction(SIGALRM, &act, NULL);
		setitimer(ITIMER_REAL, &every, NULL);
	}
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	run((void *)(intptr_t)first);
}
