/* family STATUS MB CHILDREN SEED CHANGED BLOCK [quiet]: a process that fills MB MiB of memory and forks CHILDREN
 * children, the first of which forks one of its own. Then each of them changes CHANGED of a thousand blocks of BLOCK
 * pages in its own copy. Every check has all of them compare all pages with what they last wrote, and then change some
 * more: nobody may see another one's changes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

static struct status *st;
static uint64_t seed, pages;
static uint64_t (*mem)[WORDS];
static uint32_t *version; /* of each page; 0: as before the first fork */
static uint32_t me;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

/* Some pages were written and are zero. */
static uint64_t word(uint64_t page, uint32_t v, uint64_t i)
{
	if (v == 0 && page % 64 == 63)
		return 0;
	return mix(seed + mix(page * 131 + ((uint64_t)v << 40)) + i);
}

static void fill(uint64_t page, uint32_t v)
{
	version[page] = v;
	for (uint64_t i = 0; i < WORDS; i++)
		mem[page][i] = word(page, v, i);
}

static void change(uint64_t thousandth, uint64_t block, uint32_t round)
{
	for (uint64_t p = 0; p < pages; p++)
		if (mix(seed * 3 + mix(p / block + ((uint64_t)me << 32) + ((uint64_t)round << 48))) % 1000 < thousandth)
			fill(p, (me << 8) + round + 1);
}

static void check(void)
{
	for (uint64_t p = 0; p < pages; p++)
		for (uint64_t i = 0; i < WORDS; i++)
			if (mem[p][i] != word(p, version[p], i)) {
				if (st->mismatches++ == 0)
					snprintf(st->message, sizeof st->message,
						 "process %u, page %llu, version %u, word %llu: %llx", me,
						 (unsigned long long)p, version[p], (unsigned long long)i,
						 (unsigned long long)mem[p][i]);
				break;
			}
	st->pages += pages;
}

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	int fd = open(argv[1], O_RDWR);
	st = mmap(NULL, sizeof *st, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || st == MAP_FAILED || (setsid() < 0 && getsid(0) != getpid()))
		return 3;
	close(fd);
	pages = strtoull(argv[2], NULL, 10) << 8;
	uint64_t children = strtoull(argv[3], NULL, 10);
	seed = strtoull(argv[4], NULL, 10);
	uint64_t thousandth = strtoull(argv[5], NULL, 10), block = strtoull(argv[6], NULL, 10);
	mem = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	version = mmap(NULL, pages * sizeof *version, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED || version == MAP_FAILED)
		return 4;
	for (uint64_t p = 0; p < pages; p++)
		fill(p, 0);

	for (uint32_t n = 1; n <= children && me == 0; n++)
		if (fork() == 0)
			me = n;
	change(thousandth, block, 0);
	if (me == 1 && fork() == 0) {
		me = children + 1;
		change(thousandth, block, 0);
	}
	uint64_t done = st->check;
	st->forks++;
	if (me == 0) {
		while (st->forks < children + 2 - (children == 0))
			usleep(1000);
		st->ready = 1;
	}
	while (!st->stop) {
		usleep(1000);
		st->beats++;
		if (st->check == done || st->check == 0) {
			done = st->check;
			continue;
		}
		check();
		change(20, 1, ++done);
		check();
		st->checked++;
	}
	return 0;
}
