/*
 * The application of cudasim's tests: it keeps numbers in VRAM and answers questions about them.
 *
 *     app SOCKET [MIB [GPUS [PROCESSES]]]
 *
 * fills MIB of VRAM on each of GPUS GPUs. PROCESSES-1 children do the same and answer on SOCKET.1, SOCKET.2, ... One
 * line is asked, one answered, per connection; where SOCKET is the word pipes, lines are written to descriptor 901 of
 * the process and answers read from 902, by their names in /proc:
 *
 *     ask SEED          "answer HASH COUNT": a hash over the seed and all VRAM; COUNT, in VRAM too, is how many were
 *                       asked
 *     work MS           "ok", and the GPU has work for MS
 *     fail ACTION CODE  "ok", and the driver's next such action fails
 *     stall ACTION MS   "ok", and the driver's next such action takes longer
 *     release MS        "ok", and for MS there is a thread with the name of one that gives memory back
 *     fork              "ok PID": a child that does nothing, with all descriptors of its parent
 *     worker N          "ok PID": such a child, of two threads, that answers asks on SOCKET.N without the GPU, and
 *                       opens its device on "open"
 */
#define _GNU_SOURCE
#include "cudasim.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_GPUS = 16, CHUNK = 1 << 20, PIPES = 900 };

static uint64_t vram[MAX_GPUS], counter;
static size_t size;
static int gpus;

static void check(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "app: %s: error %d\n", what, result);
		exit(1);
	}
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9e3779b97f4a7c15u;
	return x ^ x >> 29;
}

static void fill(void)
{
	static uint64_t chunk[CHUNK / 8];
	uint64_t x = 1;
	for (int g = 0; g < gpus; g++) {
		check(cudasimDevice(g), "device");
		check(cuMemAlloc_v2(&vram[g], size), "alloc");
		for (size_t at = 0; at < size; at += CHUNK) {
			for (size_t i = 0; i < CHUNK / 8; i++)
				chunk[i] = mix(x++);
			check(cuMemcpyHtoD_v2(vram[g] + at, chunk, CHUNK), "copy");
		}
	}
	uint64_t zero = 0;
	check(cudasimDevice(0), "device");
	check(cuMemAlloc_v2(&counter, sizeof zero), "alloc");
	check(cuMemcpyHtoD_v2(counter, &zero, sizeof zero), "copy");
}

static void answer(FILE *out, uint64_t seed)
{
	static uint64_t chunk[CHUNK / 8];
	uint64_t hash = mix(seed), count;
	for (int g = 0; g < gpus; g++)
		for (size_t at = 0; at < size; at += CHUNK) {
			check(cuMemcpyDtoH_v2(chunk, vram[g] + at, CHUNK), "copy");
			for (size_t i = 0; i < CHUNK / 8; i++)
				hash = (hash ^ chunk[i]) * 0x100000001b3u;
		}
	check(cuMemcpyDtoH_v2(&count, counter, sizeof count), "copy");
	count++;
	check(cuMemcpyHtoD_v2(counter, &count, sizeof count), "copy");
	fprintf(out, "answer %016llx %llu\n", (unsigned long long)hash, (unsigned long long)count);
}

static int listening(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int l = socket(AF_UNIX, SOCK_STREAM, 0);
	if (strlen(path) >= sizeof a.sun_path) {
		fprintf(stderr, "app: %s is too long for a socket\n", path);
		exit(1);
	}
	strcpy(a.sun_path, path);
	unlink(path);
	if (l < 0 || bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 16)) {
		perror("app: listen");
		exit(1);
	}
	return l;
}

static volatile unsigned long long spins;

static void *spin(void *p)
{
	for (;; spins++)
		usleep(1000);
	return p;
}

static void *release(void *ms)
{
	usleep((useconds_t)(intptr_t)ms * 1000);
	return NULL;
}

static int releases(unsigned long long ms)
{
	pthread_t t;
	return !pthread_create(&t, NULL, release, (void *)(intptr_t)ms) && !pthread_setname_np(t, "gpucr-release") &&
	       !pthread_detach(t);
}

/*
 * work answers as a forked worker does, which computes on the CPU. The descriptors that it opens have numbers of its
 * own.
 */
static void work(const char *path)
{
	pthread_t t;
	unsigned long long n, count = 0;
	int l = listening(path);
	pthread_create(&t, NULL, spin, NULL);
	for (;;) {
		char line[256];
		int fd = accept(l, NULL, NULL);
		FILE *f = fd < 0 ? NULL : fdopen(fd, "r+");
		if (f && fgets(line, sizeof line, f)) {
			if (sscanf(line, "ask %llu", &n) == 1)
				fprintf(f, "answer %016llx %llu\n", (unsigned long long)mix(n), ++count);
			else if (!strcmp(line, "open\n"))
				fprintf(f, "ok %d\n", open(getenv("CUDASIM_DEVICE"), O_RDWR | O_CLOEXEC));
		}
		if (f)
			fclose(f);
	}
}

/* child ends with its parent, and leaves the line over which it was asked for. */
static int child(int l, int fd)
{
	int pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(l);
		close(fd);
	}
	return pid;
}

/* obey answers a line. l is what listens, fd where the line came from. */
static void obey(const char *path, const char *line, FILE *f, int l, int fd)
{
	char action[32];
	unsigned long long n;
	int code, pid;
	if (sscanf(line, "ask %llu", &n) == 1) {
		answer(f, n);
	} else if ((sscanf(line, "release %llu", &n) == 1 && releases(n)) ||
		   (sscanf(line, "work %llu", &n) == 1 && !cudasimWork((int)n)) ||
		   (sscanf(line, "fail %31s %d", action, &code) == 2 && !cudasimFail(action, code)) ||
		   (sscanf(line, "stall %31s %d", action, &code) == 2 && !cudasimStall(action, code))) {
		fputs("ok\n", f);
	} else if (!strcmp(line, "fork\n")) {
		if ((pid = child(l, fd)) == 0)
			for (;;)
				pause();
		fprintf(f, "ok %d\n", pid);
	} else if (sscanf(line, "worker %llu", &n) == 1) {
		if ((pid = child(l, fd)) == 0) {
			char own[220];
			snprintf(own, sizeof own, "%s.%llu", path, n);
			work(own);
		}
		fprintf(f, "ok %d\n", pid);
	} else {
		fputs("what?\n", f);
	}
}

static void serve(const char *path)
{
	char line[256];
	int l = listening(path);
	for (;;) {
		int fd = accept(l, NULL, NULL);
		FILE *f = fd < 0 ? NULL : fdopen(fd, "r+");
		if (!f)
			continue;
		if (fgets(line, sizeof line, f))
			obey(path, line, f, l, fd);
		fclose(f);
	}
}

/*
 * serve_pipes answers lines that come over a pipe over another one. Both ends of both have fixed numbers, by which
 * others open them in /proc.
 */
static void serve_pipes(void)
{
	char line[256];
	for (int first = PIPES; first < PIPES + 4; first += 2) {
		int p[2];
		if (pipe(p) || dup2(p[0], first) < 0 || dup2(p[1], first + 1) < 0 || close(p[0]) || close(p[1])) {
			perror("app: pipe");
			exit(1);
		}
	}
	FILE *in = fdopen(PIPES, "r"), *out = fdopen(PIPES + 3, "w");
	while (in && out && fgets(line, sizeof line, in)) {
		obey("pipes", line, out, -1, -1);
		fflush(out);
	}
}

int main(int argc, char **argv)
{
	char path[200];
	signal(SIGPIPE, SIG_IGN);
	if (argc < 2)
		return 2;
	snprintf(path, sizeof path, "%s", argv[1]);
	size = (size_t)(argc > 2 ? atoi(argv[2]) : 8) << 20;
	gpus = argc > 3 ? atoi(argv[3]) : 1;
	for (int i = 1; i < (argc > 4 ? atoi(argv[4]) : 1); i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			snprintf(path, sizeof path, "%s.%d", argv[1], i);
			break;
		}
	check(cuInit(0), "init");
	fill();
	if (!strcmp(path, "pipes"))
		serve_pipes();
	serve(path);
}
