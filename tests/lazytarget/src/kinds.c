/*
 * A process with memory of every kind that a fork, a fault or the kernel treats in
 * a way of its own: guard pages, memory that a child does not get or gets empty,
 * memory that may be dropped, locked, sealed, merged. Each scenario has memory of
 * its own, untouched since the dump, and checks what the kernel promises of it while
 * it is being filled. What is beyond the last scenario checks all of it again.
 *
 * usage: kinds STATUS MB THREADS SEED [quiet]; only STATUS counts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "status.h"

#define PAGE 4096UL
#define PAGES 64
#define APART (4UL << 20) /* what one fault brings does not reach the next scenario's memory */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#define MADV_KEEPONFORK 19
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define DROPPABLE 0x08
#define SYS_MSEAL 462

static struct status *st;
static const char *scenario = "setup";
static sigjmp_buf jmp;

static void failed(const char *fmt, ...)
{
	va_list ap;
	char line[300];
	int n = snprintf(line, sizeof line, "%s: ", scenario);
	va_start(ap, fmt);
	vsnprintf(line + n, sizeof line - n, fmt, ap);
	va_end(ap);
	if (atomic_fetch_add(&st->mismatches, 1) < 8)
		strncat(st->message, line, sizeof st->message - strlen(st->message) - 1);
}

static void must(int ok, const char *what)
{
	if (!ok) {
		failed("%s: %s\n", what, strerror(errno));
		_exit(3);
	}
}

static void on_fault(int sig) { siglongjmp(jmp, sig); }

/* A block is a mapping of PAGES pages; page i holds words that tell id and i. */
struct block {
	uint8_t *p;
	uint64_t id;
};

static uint64_t word(uint64_t id, size_t i, size_t w) { return (id * PAGES + i + 1) * 0x9e3779b97f4a7c15 + w; }

enum { CONTENTS, ZERO, SEGV, EITHER };
static const char *const names[] = { "contents", "zeros", "SIGSEGV", "contents or zeros" };

/* page checks one page; a sweep in between may change what it finds. */
static void page(struct block *b, size_t i, int want, const char *who)
{
	volatile uint64_t *w = (uint64_t *)(b->p + i * PAGE);
	int sig = sigsetjmp(jmp, 1);
	if (sig) {
		if (want != SEGV || sig != SIGSEGV)
			failed("%s: page %zu gave signal %d, want %s\n", who, i, sig, names[want]);
		return;
	}
	uint64_t first = w[0];
	if (want == SEGV) {
		failed("%s: page %zu holds %lx, want %s\n", who, i, first, names[want]);
		return;
	}
	int full = want == CONTENTS || (want == EITHER && first);
	for (size_t k = 0; k < PAGE / 8; k++) {
		uint64_t x = full ? word(b->id, i, k) : 0;
		if (w[k] != x) {
			failed("%s: page %zu word %zu: %lx, want %s\n", who, i, k, w[k], names[want]);
			return;
		}
	}
	atomic_fetch_add(&st->pages, 1);
}

static void pages(struct block *b, size_t from, size_t to, int want, const char *who)
{
	for (size_t i = from; i < to; i++)
		page(b, i, want, who);
}

static uint8_t *place(size_t n, int flags)
{
	static uintptr_t at = 0x300000000000;
	uint8_t *p = mmap((void *)at, n, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	must(p != MAP_FAILED, "mmap");
	at += n + APART;
	return p;
}

/* make maps a block and memory behind it that keeps the next one's apart in the images. */
static struct block make(int flags)
{
	static uint64_t ids = 1;
	struct block b = { .p = place(PAGES * PAGE, flags), .id = ids++ };
	for (size_t i = 0; i < PAGES; i++)
		for (size_t w = 0; w < PAGE / 8; w++)
			((uint64_t *)(b.p + i * PAGE))[w] = word(b.id, i, w);
	uint8_t *pad = place(APART / 2, MAP_PRIVATE);
	for (size_t i = 0; i < APART / 2; i += 8)
		*(uint64_t *)(pad + i) = i * 0x9e3779b97f4a7c15 + b.id;
	return b;
}

static void advise(struct block *b, size_t from, size_t to, int advice)
{
	must(madvise(b->p + from * PAGE, (to - from) * PAGE, advice) == 0, "madvise");
}

/* child runs f in a forked process. */
static void child(void (*f)(void))
{
	pid_t pid = fork();
	must(pid >= 0, "fork");
	if (pid == 0) {
		f();
		_exit(0);
	}
	int status;
	while (waitpid(pid, &status, 0) < 0)
		must(errno == EINTR, "waitpid");
	if (status != 0)
		failed("a child ended with status %x\n", status);
	atomic_fetch_add(&st->forks, 1);
}

static void move(struct block *b)
{
	uint8_t *to = place(PAGES * PAGE, MAP_PRIVATE);
	must(mremap(b->p, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
	b->p = to;
}

/* Guards of the images: pages 8, 9, 31 and 63. */
static struct block guarded[4];
static void guard(struct block *b)
{
	advise(b, 8, 10, GUARD_INSTALL);
	advise(b, 31, 32, GUARD_INSTALL);
	advise(b, 63, 64, GUARD_INSTALL);
}
static void guards_of(struct block *b, const char *who)
{
	for (size_t i = 0; i < PAGES; i++)
		page(b, i, i == 8 || i == 9 || i == 31 || i == 63 ? SEGV : CONTENTS, who);
}
static void guards_child(void) { guards_of(&guarded[1], "child"); }
static void set_guards(void)
{
	for (int i = 0; i < 4; i++) {
		guarded[i] = make(MAP_PRIVATE);
		guard(&guarded[i]);
	}
}
static void guards(void) { guards_of(&guarded[0], "parent"); }
static void guards_fork(void)
{
	child(guards_child);
	guards_of(&guarded[1], "parent");
}
static void guards_move(void)
{
	move(&guarded[2]);
	guards_of(&guarded[2], "moved");
}
static void guards_unmap(void)
{
	struct block *b = &guarded[3];
	must(munmap(b->p + 20 * PAGE, 20 * PAGE) == 0, "munmap");
	page(b, 9, SEGV, "left of it");
	page(b, 8, SEGV, "left of it");
	pages(b, 10, 20, CONTENTS, "left of it");
	pages(b, 20, 40, SEGV, "unmapped");
	pages(b, 40, 63, CONTENTS, "right of it");
	page(b, 63, SEGV, "right of it");
}
static void guards_end(void)
{
	for (int i = 0; i < 3; i++)
		guards_of(&guarded[i], "parent");
	child(guards_child);
	/* Removed, they are memory without contents. */
	advise(&guarded[0], 8, 10, GUARD_REMOVE);
	pages(&guarded[0], 8, 10, ZERO, "removed");
}

/* Guards installed over what is still missing. */
static struct block late[3];
static void set_late(void)
{
	for (int i = 0; i < 3; i++)
		late[i] = make(MAP_PRIVATE);
}
static void late_child(void)
{
	pages(&late[2], 0, 4, CONTENTS, "child, before");
	pages(&late[2], 8, PAGES, CONTENTS, "child, behind");
	pages(&late[2], 4, 8, SEGV, "child, guard");
}
static void late_guards(void)
{
	advise(&late[2], 4, 8, GUARD_INSTALL);
	child(late_child);
	late_child();
	advise(&late[0], 4, 8, GUARD_INSTALL);
	pages(&late[0], 0, 4, CONTENTS, "before");
	pages(&late[0], 4, 8, SEGV, "guard");
	pages(&late[0], 8, PAGES, CONTENTS, "behind");
	pages(&late[0], 4, 8, SEGV, "guard");
	advise(&late[1], 0, PAGES, GUARD_INSTALL);
}
static void late_end(void)
{
	pages(&late[0], 4, 8, SEGV, "guard");
	pages(&late[1], 0, PAGES, SEGV, "guard");
	late_child();
	advise(&late[0], 4, 8, GUARD_REMOVE);
	pages(&late[0], 4, 8, ZERO, "removed");
}

/* Memory that a child gets empty: since before the dump, moved since then, marked
 * and unmarked since then, half of a mapping. */
static struct block wiped[6];
static void set_wipe(void)
{
	for (int i = 0; i < 6; i++)
		wiped[i] = make(MAP_PRIVATE);
	advise(&wiped[0], 0, PAGES, MADV_WIPEONFORK);
	advise(&wiped[1], 0, PAGES, MADV_WIPEONFORK);
	advise(&wiped[3], 0, PAGES, MADV_WIPEONFORK);
	advise(&wiped[4], 16, 32, MADV_WIPEONFORK);
	advise(&wiped[5], 0, PAGES, MADV_WIPEONFORK);
}
static void wiped_page(void)
{
	struct block *b = &wiped[5];
	page(b, 3, ZERO, "grandchild");
	pages(b, 32, PAGES, ZERO, "grandchild");
}
static void wiped_child(void)
{
	pages(&wiped[0], 0, PAGES, ZERO, "child");
	pages(&wiped[1], 0, PAGES, ZERO, "child, moved");
	pages(&wiped[2], 0, PAGES, ZERO, "child, marked late");
	pages(&wiped[3], 0, PAGES, CONTENTS, "child, mark removed");
	pages(&wiped[4], 0, 16, CONTENTS, "child, before");
	pages(&wiped[4], 16, 32, ZERO, "child, marked part");
	pages(&wiped[4], 32, PAGES, CONTENTS, "child, behind");
	struct block *b = &wiped[5];
	for (size_t w = 0; w < PAGE / 8; w++)
		((uint64_t *)(b->p + 3 * PAGE))[w] = word(b->id, 3, w);
	child(wiped_page);
	page(b, 3, CONTENTS, "child's own");
	page(b, 4, ZERO, "child's own");
}
static void wipe_end(void)
{
	for (int i = 0; i < 6; i++)
		pages(&wiped[i], 0, PAGES, CONTENTS, "parent");
}
static void wipe(void)
{
	move(&wiped[1]);
	advise(&wiped[2], 0, PAGES, MADV_WIPEONFORK);
	advise(&wiped[3], 0, PAGES, MADV_KEEPONFORK);
	child(wiped_child);
	child(wiped_child);
	wipe_end();
	child(wiped_child);
}

/* Memory that a child does not get: since before the dump, and since then. */
static struct block kept[3];
static void set_dontfork(void)
{
	for (int i = 0; i < 3; i++)
		kept[i] = make(MAP_PRIVATE);
	advise(&kept[0], 0, PAGES, MADV_DONTFORK);
	advise(&kept[2], 0, 8, MADV_DONTFORK);
	advise(&kept[2], PAGES - 8, PAGES, MADV_DONTFORK);
}
static void kept_child(void)
{
	for (int i = 0; i < 2; i++)
		pages(&kept[i], 0, PAGES, SEGV, "child");
	pages(&kept[2], 0, 8, SEGV, "child");
	pages(&kept[2], 8, PAGES - 8, CONTENTS, "child");
	pages(&kept[2], PAGES - 8, PAGES, SEGV, "child");
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	must(mmap(kept[0].p, PAGES * PAGE, PROT_READ, flags, -1, 0) == kept[0].p, "mmap");
	pages(&kept[0], 0, PAGES, ZERO, "child's own");
}
static void dontfork_end(void)
{
	for (int i = 0; i < 3; i++)
		pages(&kept[i], 0, PAGES, CONTENTS, "parent");
}
static void dontfork(void)
{
	advise(&kept[1], 0, PAGES, MADV_DONTFORK);
	child(kept_child);
	dontfork_end();
}

/* Memory that may be gone, and is not when it has been written again. */
static struct block freed[2], dropped;
static void set_free(void)
{
	freed[0] = make(MAP_PRIVATE), freed[1] = make(MAP_PRIVATE), dropped = make(DROPPABLE);
	advise(&freed[0], 0, PAGES, MADV_FREE);
}
static void free_child(void)
{
	pages(&freed[0], 0, PAGES, EITHER, "child");
	pages(&freed[1], 0, PAGES, EITHER, "child");
	pages(&dropped, 0, PAGES, ZERO, "child"); /* it is wiped as well */
}
static void free_end(void)
{
	pages(&freed[1], 0, 4, CONTENTS, "written");
	pages(&freed[1], 4, PAGES, EITHER, "parent");
	pages(&freed[0], 0, PAGES, EITHER, "parent");
	pages(&dropped, 0, PAGES, EITHER, "parent");
}
static void may_be_freed(void)
{
	advise(&freed[1], 0, PAGES, MADV_FREE);
	for (size_t i = 0; i < 4; i++)
		for (size_t w = 0; w < PAGE / 8; w++)
			((uint64_t *)(freed[1].p + i * PAGE))[w] = word(freed[1].id, i, w);
	child(free_child);
	free_end();
}

/* What must make no difference, before the dump and while memory is missing. */
static struct block other[14];
static void set_other(void)
{
	for (int i = 0; i < 14; i++)
		other[i] = make(i == 6 ? MAP_PRIVATE | MAP_LOCKED : MAP_PRIVATE);
	advise(&other[0], 0, PAGES, MADV_MERGEABLE);
	advise(&other[1], 0, PAGES, MADV_HUGEPAGE);
	advise(&other[2], 0, PAGES, MADV_NOHUGEPAGE);
	advise(&other[3], 0, PAGES, MADV_DONTDUMP);
	advise(&other[4], 0, PAGES, MADV_RANDOM);
	must(mlock(other[5].p, PAGES * PAGE) == 0, "mlock");
}
static void other_child(void)
{
	for (int i = 0; i < 14; i++)
		pages(&other[i], 0, PAGES, CONTENTS, "child");
}
static void other_end(void)
{
	for (int i = 0; i < 14; i++)
		pages(&other[i], 0, PAGES, CONTENTS, "parent");
}
static void no_difference(void)
{
	advise(&other[7], 0, PAGES, MADV_MERGEABLE);
	advise(&other[8], 0, PAGES, MADV_HUGEPAGE);
	advise(&other[9], 0, PAGES, 20 /* MADV_COLD */);
	advise(&other[10], 0, PAGES, 21 /* MADV_PAGEOUT */);
	must(mlock(other[11].p, PAGES * PAGE) == 0, "mlock");
	must(syscall(SYS_mlock2, other[12].p, PAGES * PAGE, MLOCK_ONFAULT) == 0, "mlock2");
	must(syscall(SYS_MSEAL, other[13].p, PAGES * PAGE, 0) == 0 || errno == ENOSYS, "mseal");
	child(other_child);
	other_end();
}

static const struct {
	const char *name;
	void (*set)(void), (*run)(void), (*end)(void);
} scenarios[] = {
	{ "guards", set_guards, guards, guards_end },
	{ "guards and fork", NULL, guards_fork, NULL },
	{ "guards and mremap", NULL, guards_move, NULL },
	{ "guards and munmap", NULL, guards_unmap, NULL },
	{ "late guards", set_late, late_guards, late_end },
	{ "wipe on fork", set_wipe, wipe, wipe_end },
	{ "dontfork", set_dontfork, dontfork, dontfork_end },
	{ "freed", set_free, may_be_freed, free_end },
	{ "no difference", set_other, no_difference, other_end },
};

int main(int argc, char **argv)
{
	const size_t n = sizeof scenarios / sizeof *scenarios;
	if (argc < 2)
		return 2;
	syscall(SYS_close_range, 3U, ~0U, 0U);
	int fd = open(argv[1], O_RDWR);
	if (fd < 0)
		return 2;
	st = mmap(NULL, sizeof *st, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (st == MAP_FAILED)
		return 2;
	struct sigaction sa = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	setsid();
	for (size_t i = 0; i < n; i++)
		if (scenarios[i].set)
			scenarios[i].set();
	atomic_store(&st->ready, 1);
	for (uint64_t seen = 0; !atomic_load(&st->stop); atomic_fetch_add(&st->beats, 1)) {
		if (seen == atomic_load(&st->check)) {
			usleep(200);
			continue;
		}
		if (seen < n) {
			scenario = scenarios[seen].name;
			scenarios[seen].run();
		} else {
			for (size_t i = 0; i < n; i++) {
				scenario = scenarios[i].name;
				if (scenarios[i].end)
					scenarios[i].end();
			}
		}
		seen++;
		atomic_fetch_add(&st->checked, 1);
	}
	atomic_store(&st->exited, 1);
	return 0;
}
