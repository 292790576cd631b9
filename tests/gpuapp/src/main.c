/*
 * gpuapp: an application on AMD GPUs that knows at every moment what its VRAM
 * must hold, and looks. Processes of BOs of every kind and of sizes from 4 KiB
 * up, CPU-mapped and not, shared between processes by dmabuf, all changed by
 * kernels, moved by SDMA and hashed by the GPU, for ever.
 *
 *   gpuapp --dir DIR [--procs N] [--gpus N] [--bos N] [--max-bo BYTES]
 *          [--big-bo BYTES] [--memory BYTES] [--cpu-bo BYTES] [--interval MS]
 *          [--ticks N] [--own-event-page] [--render-bo BYTES] [--keep-dmabuf] [--map-late] [--render-kfd]
 *          [--dmabuf-alone] [--render-userptr]
 *
 * Process I keeps DIR/status.I: one line of fixed length, "tick N round R ok",
 * or "FAIL: why", after which the process ends with status 1. A round is one
 * tick for every BO. Sizes cycle through powers of two up to --max-bo; --big-bo
 * gives each GPU one BO of its size. --memory gives each process as much memory
 * of its own, some words of which it checks in every tick. --cpu-bo gives it VRAM that only a
 * thread of its own reads and writes, through a mapping, page by page without a pause; DIR/cpu.I
 * counts the passes over it. --render-bo makes a BO on the first render node that the KFD does not know of, and
 * --map-late maps the largest BO of the first GPU as ROCm maps what is for no CPU, and makes that readable when SIGUSR1
 * comes; --keep-dmabuf keeps the descriptor of an exported one open. --ticks ends a process after so many. It
 * asks the simulated kernels of kfd/kfdsim of the GPU, so it runs there alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "work.h"

static int status_fd = -1;

void die(const char *fmt, ...)
{
	char msg[STATUS_LEN] = "FAIL: ";
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(msg + 6, sizeof(msg) - 7, fmt, ap);
	va_end(ap);
	status_write(msg);
	fprintf(stderr, "gpuapp[%d]: %s\n", getpid(), msg + 6);
	_exit(1);
}

void status_write(const char *msg)
{
	char line[STATUS_LEN + 1];

	snprintf(line, sizeof(line), "%-*s", STATUS_LEN - 1, msg);
	line[STATUS_LEN - 1] = '\n';
	if (status_fd >= 0 && pwrite(status_fd, line, STATUS_LEN, 0) != STATUS_LEN) {
		fprintf(stderr, "gpuapp: status file: %s\n", strerror(errno));
		_exit(1);
	}
}

static void open_status(const char *dir, int index)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/status.%d", dir, index);
	status_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (status_fd < 0)
		die("open %s: %s", path, strerror(errno));
	status_write("starting");
}

static long number(const char *s, long min)
{
	char *end;
	long v = strtol(s, &end, 0);

	if (*end || v < min) {
		fprintf(stderr, "gpuapp: bad number %s\n", s);
		exit(2);
	}
	return v;
}

/* Waits for the workers; the first that fails ends all. */
static int supervise(pid_t *pids, int n)
{
	for (int left = n; left; left--) {
		int status;
		pid_t pid;

		do
			pid = wait(&status);
		while (pid < 0 && errno == EINTR);
		if (pid < 0) {
			fprintf(stderr, "gpuapp: wait: %s\n", strerror(errno));
			return 1;
		}
		for (int i = 0; i < n; i++)
			if (pids[i] == pid)
				pids[i] = 0;
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			for (int i = 0; i < n; i++)
				if (pids[i])
					kill(pids[i], SIGKILL);
			return 1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "dir", 1, 0, 'd' }, { "procs", 1, 0, 'p' }, { "gpus", 1, 0, 'g' }, { "bos", 1, 0, 'b' },
		{ "max-bo", 1, 0, 'm' }, { "big-bo", 1, 0, 'B' }, { "memory", 1, 0, 'M' }, { "cpu-bo", 1, 0, 'C' },
		{ "interval", 1, 0, 'i' }, { "ticks", 1, 0, 't' },
		{ "own-event-page", 0, 0, 'o' }, { "render-bo", 1, 0, 'r' }, { "keep-dmabuf", 0, 0, 'k' },
		{ "map-late", 0, 0, 'l' },
		{ "render-kfd", 0, 0, 'K' }, { "dmabuf-alone", 0, 0, 'a' }, { "render-userptr", 0, 0, 'u' },
		{ 0, 0, 0, 0 },
	};
	struct config cfg = { .dir = NULL, .procs = 1, .gpus = MAX_GPUS, .bos = 64, .max_bo = 4 << 20, .interval_ms = 10 };
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 'd': cfg.dir = optarg; break;
		case 'p': cfg.procs = number(optarg, 1); break;
		case 'g': cfg.gpus = number(optarg, 1); break;
		case 'b': cfg.bos = number(optarg, 1); break;
		case 'm': cfg.max_bo = number(optarg, PAGE); break;
		case 'B': cfg.big_bo = number(optarg, PAGE); break;
		case 'M': cfg.memory = number(optarg, PAGE); break;
		case 'C': cfg.cpu_bo = number(optarg, PAGE); break;
		case 'i': cfg.interval_ms = number(optarg, 0); break;
		case 't': cfg.ticks = number(optarg, 1); break;
		case 'r': cfg.render_bo = number(optarg, PAGE); break;
		case 'l': cfg.map_late = true; break;
		case 'K': cfg.render_kfd = true; break;
		case 'a': cfg.dmabuf_alone = true; break;
		case 'u': cfg.render_userptr = true; break;
		case 'k': cfg.keep_dmabuf = true; break;
		case 'o': cfg.own_event_page = true; break;
		default: return 2;
		}
	}
	if (!cfg.dir || cfg.procs > MAX_PROCS) {
		fprintf(stderr,
			"usage: gpuapp --dir DIR [--procs N] [--gpus N] [--bos N] [--max-bo BYTES] [--big-bo BYTES] "
			"[--memory BYTES] [--cpu-bo BYTES] [--interval MS] [--ticks N] [--own-event-page] [--render-bo BYTES] "
			"[--keep-dmabuf] [--map-late]\n");
		return 2;
	}
	/* What a shell or a test left open is not ours to checkpoint. */
	close_range(3, ~0u, 0);
	if (cfg.procs == 1) {
		open_status(cfg.dir, 0);
		work(&cfg, 0);
		return 0;
	}
	share_prepare(&cfg);
	pid_t pids[MAX_PROCS];

	for (int i = 0; i < cfg.procs; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			die("fork: %s", strerror(errno));
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			open_status(cfg.dir, i);
			work(&cfg, i);
			exit(0);
		}
	}
	share_close();
	return supervise(pids, cfg.procs);
}
