/*
 * A process with devices open and mapped, and a child that it forks then: family OPEN MAPPED. It prints both pids.
 * The child says "ok" for each line that it gets and finds its own data right; it has two threads.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { FILES = 4, MAPPINGS = 5, PAGE = 4096 };

static volatile unsigned long spins;

static void *spin(void *p)
{
	for (;; spins++)
		usleep(100);
	return p;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	for (int i = 0; i < FILES; i++)
		if (open(argv[1], O_RDONLY | O_CLOEXEC) < 0)
			return 3;
	int fd = open(argv[2], O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < MAPPINGS; i++) {
		char *room = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(room, i + 1, 3 * PAGE);
		/* the first two are neighbours */
		if (mmap(room + (i == 0 ? 2 * PAGE : i == 1 ? 0 : PAGE), PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
			0) == MAP_FAILED)
			return 4;
	}
	char *mine = malloc(PAGE);
	memset(mine, 7, PAGE);
	int child = fork();
	if (child == 0) {
		pthread_t t;
		char line[100];
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_create(&t, NULL, spin, NULL);
		while (fgets(line, sizeof line, stdin)) {
			unsigned long before = spins;
			while (spins == before)
				usleep(100);
			for (int i = 0; i < PAGE; i++)
				if (mine[i] != 7)
					return 5;
			puts("ok");
			fflush(stdout);
		}
		return 0;
	}
	printf("%d %d\n", (int)getpid(), child);
	fflush(stdout);
	for (;;)
		pause();
}
