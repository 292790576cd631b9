/*
 * Holding what CRIU traces. When a tracer is killed the kernel lets its tasks go
 * on, and those of a restore would run before their VRAM is in place.
 * PTRACE_O_EXITKILL has them killed instead. It is taken back when all processes
 * are complete, since CRIU lets go of them one by one.
 *
 * Only CRIU itself may do this, and only while the tasks stand: between the end of
 * their restorers and the detaching, where RESUME_DEVICES_LATE is called.
 */
#define _GNU_SOURCE
#include "plugin.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>

/* Of the tree whose root is CRIU's first task. */
static int root;

/* CRIU itself asks for PTRACE_O_TRACESYSGOOD. */
static void set(int pid, int options)
{
	char path[64];
	struct dirent *d;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return; /* it has been killed */
	while ((d = readdir(tasks))) {
		char children[128];
		int tid = atoi(d->d_name), child;
		FILE *f;

		if (tid <= 0)
			continue;
		if (ptrace(PTRACE_SETOPTIONS, tid, NULL, options) && errno != ESRCH)
			say(LOG_WARN, "options for thread %d: %s", tid, strerror(errno));
		snprintf(children, sizeof(children), "/proc/%d/task/%d/children", pid, tid);
		f = fopen(children, "re");
		if (!f)
			continue;
		while (fscanf(f, "%d", &child) == 1)
			set(child, options);
		fclose(f);
	}
	closedir(tasks);
}

void exitkill_set(int pid)
{
	if (root)
		return;
	root = pid;
	set(root, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
}

void exitkill_clear(void)
{
	set(root, PTRACE_O_TRACESYSGOOD);
}
