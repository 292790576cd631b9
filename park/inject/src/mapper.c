/*
 * mapper FILE THREADS MIB SIGNALS FORKS: threads that map memory, use it and unmap it, by system calls of their own
 * after which each register, the flags and the blocked signals are looked at. With FORKS another thread forks all the
 * time. Counts are written to FILE, 8 bytes each: the rounds of each thread, then at 32 what was found wrong. A thread
 * that gets SIGUSR2 or SIGPIPE goes on with its rounds in the handler, as long as the count at 40 is not 0. So does one
 * that gets SIGHUP, whose handler has a stack of its own. At 39 is how many are in these handlers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REGISTERS = 32, FLAGS, MEMORY, ADDRESS, INHERITED, SIGNALS, HANDLED, STAYING, STAY };

static volatile uint64_t *counts;
static size_t size;
static bool forks;
static __thread long number; /* of a thread */
static char *volatile current; /* where a thread's memory is, or was last */
static volatile bool changing; /* current is not known */

static void count(int what) { __atomic_add_fetch(&counts[what], 1, __ATOMIC_RELAXED); }

/* registers are all that a system call leaves, but for RSP, and what it gives. */
struct registers {
	uint64_t v[14];
};

enum { RAX, RBX, RDX, RSI, RDI, RBP, R8, R9, R10, R12, R13, R14, R15, EFLAGS };

void call(struct registers *r);
__asm__(".text\n"
	"call:\n"
	"push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rdi\n"
	"pushq 104(%rdi)\n popfq\n"
	"mov (%rdi), %rax\n mov 8(%rdi), %rbx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rsi\n mov 40(%rdi), %rbp\n"
	"mov 48(%rdi), %r8\n mov 56(%rdi), %r9\n mov 64(%rdi), %r10\n mov 72(%rdi), %r12\n mov 80(%rdi), %r13\n"
	"mov 88(%rdi), %r14\n mov 96(%rdi), %r15\n mov 32(%rdi), %rdi\n"
	"syscall\n"
	"pushfq\n"
	"push %rdi\n"
	"mov 16(%rsp), %rdi\n"
	"mov %rax, (%rdi)\n mov %rbx, 8(%rdi)\n mov %rdx, 16(%rdi)\n mov %rsi, 24(%rdi)\n mov %rbp, 40(%rdi)\n"
	"mov %r8, 48(%rdi)\n mov %r9, 56(%rdi)\n mov %r10, 64(%rdi)\n mov %r12, 72(%rdi)\n mov %r13, 80(%rdi)\n"
	"mov %r14, 88(%rdi)\n mov %r15, 96(%rdi)\n"
	"popq 32(%rdi)\n popq 104(%rdi)\n"
	"pop %rdi\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"ret\n");

/* make makes a system call, and looks whether it leaves all as it was but for RAX. */
static uint64_t make(uint64_t nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	static volatile uint64_t some = 0x1111111111111111;
	struct registers r = {{nr, some++, c, b, a, some++, e, f, d, some++, some++, some++, some++, 0x2d7}}, was = r;
	r.v[EFLAGS] = was.v[EFLAGS] = some & 1 ? 0xad7 : 0x202; /* all that a comparison sets, and none */
	call(&r);
	uint64_t result = r.v[RAX];
	if ((r.v[EFLAGS] ^ was.v[EFLAGS]) & 0xcd5)
		count(FLAGS);
	sigset_t blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	if (!sigismember(&blocked, SIGUSR1) || sigismember(&blocked, SIGALRM) || sigismember(&blocked, SIGUSR2))
		count(SIGNALS);
	r.v[RAX] = was.v[RAX];
	r.v[EFLAGS] = was.v[EFLAGS];
	if (memcmp(&r, &was, sizeof r))
		count(REGISTERS);
	return result;
}

static void handle(int sig)
{
	(void)sig;
	count(HANDLED);
}

/* inherited says whether this process, a forked one, has a mapping as large as that of a thread, and elsewhere. */
static bool inherited(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[4096];
	bool found = false;
	unsigned long from, to;
	while (f && fgets(line, sizeof line, f))
		found = found || (sscanf(line, "%lx-%lx rw-p", &from, &to) == 2 && to - from == size && !strchr(line, '/') &&
				  from != (unsigned long)current);
	return found;
}

static void *fork_all_the_time(void *arg)
{
	for (;;) {
		pid_t child = fork();
		if (!child)
			_exit(!changing && inherited());
		int status;
		if (waitpid(child, &status, 0) != child || status)
			count(INHERITED);
	}
	return arg;
}

/* once is one round. */
static void once(void)
{
	changing = true;
	char *p = (char *)make(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			       (uint64_t)-1, 0);
	if ((int64_t)p < 0) {
		count(MEMORY);
		return;
	}
	current = p;
	changing = false;
	for (size_t o = 0; o < size; o += 4096) {
		if (p[o])
			count(MEMORY);
		p[o] = 1;
	}
	if (make(SYS_munmap, (uint64_t)p, size, 77, 88, 99, 66))
		count(MEMORY);
	if (!forks) {
		char *again = mmap(p, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (again == p)
			munmap(p, size);
		else if (counts[31] == 1) /* one thread alone: nobody else may have it */
			count(ADDRESS);
	}
	count((int)number);
}

/*
 * stay makes two mappings of the stack that it is on, and with SIGPIPE a page between them that cannot be written. It
 * has what looks like the beginning of the block that the C library has above the stack of a thread.
 */
static void stay(int sig)
{
	char room[4 * 4096];
	char *page = (char *)(((uintptr_t)room + 2 * 4096) & ~4095ul);
	uint64_t *block = (uint64_t *)((uintptr_t)(page - 4096) & ~63ul);
	block[0] = block[2] = (uintptr_t)block;
	block[5] = 4096;
	if (sig == SIGPIPE)
		mprotect(page, 4096, PROT_READ);
	madvise(page, 4096, MADV_DONTFORK);
	count(STAYING);
	while (counts[STAY])
		once();
	madvise(page, 4096, MADV_DOFORK);
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
	__atomic_sub_fetch(&counts[STAYING], 1, __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
	number = (long)arg;
	stack_t other = {.ss_sp = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
			 .ss_size = 1 << 16};
	sigaltstack(&other, NULL);
	sigset_t some;
	sigemptyset(&some);
	sigaddset(&some, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &some, NULL);
	for (;;)
		once();
	return NULL;
}

int main(int argc, char **argv)
{
	int fd = argc > 5 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
	if (fd < 0 || ftruncate(fd, 4096))
		return 1;
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	long n = atol(argv[2]);
	counts[31] = (uint64_t)n;
	size = (size_t)atol(argv[3]) << 20;
	forks = atoi(argv[5]);
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	if (atoi(argv[4])) {
		struct sigaction sa = {.sa_handler = handle, .sa_flags = SA_RESTART};
		struct itimerval often = {{0, 300}, {0, 300}};
		sigaction(SIGALRM, &sa, NULL);
		setitimer(ITIMER_REAL, &often, NULL);
	}
	struct sigaction stays = {.sa_handler = stay, .sa_flags = SA_RESTART | SA_NODEFER};
	sigaction(SIGUSR2, &stays, NULL);
	sigaction(SIGPIPE, &stays, NULL);
	stays.sa_flags |= SA_ONSTACK;
	sigaction(SIGHUP, &stays, NULL);
	for (long i = 0; i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, work, (void *)i))
			return 1;
	}
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	pthread_t t;
	if (forks && pthread_create(&t, NULL, fork_all_the_time, NULL))
		return 1;
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	for (;;)
		pause();
}
