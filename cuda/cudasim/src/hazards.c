#define _GNU_SOURCE
#include "hazards.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static volatile int *notifier; /* NULL: nobody asks */

/* asker is a thread of the program that asks for errors from time to time. No lock holds it back. */
static void *asker(void *arg)
{
	(void)arg;
	for (int seen = 0;; seen += *notifier)
		usleep(1000);
	return NULL;
}

static bool map_notifier(void *at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
	void *p = mmap(at, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	notifier = p;
	return p != MAP_FAILED;
}

static unsigned char *registered;
static size_t registered_size;

static bool register_memory(void)
{
	const char *mib = getenv("CUDASIM_REGISTERED");
	registered_size = mib ? (size_t)atoi(mib) << 20 : 0;
	if (!registered_size)
		return true;
	registered = mmap(NULL, registered_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (registered == MAP_FAILED)
		return false;
	for (size_t i = 0; i < registered_size; i++)
		registered[i] = (unsigned char)(i * 31 + i / PAGE);
	return true;
}

bool pin_registered(void)
{
	for (size_t at = 0; at < registered_size; at += PAGE) {
		unsigned char there;
		if (mincore(registered + at, PAGE, &there) || !(there & 1))
			return false;
	}
	for (size_t i = 0; i < registered_size; i++)
		if (registered[i] != (unsigned char)(i * 31 + i / PAGE))
			return false;
	return true;
}

static void *room; /* NULL: the driver keeps none */
static size_t room_size;

/* map_room maps device memory where the driver has its addresses, over whatever lies there. */
static bool map_room(void *at)
{
	void *p = mmap(at, room_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
	room = p;
	return p != MAP_FAILED;
}

static bool begin_room(void)
{
	const char *mib = getenv("CUDASIM_ROOM");
	room_size = mib ? (size_t)atoi(mib) << 20 : 0;
	return !room_size || map_room(NULL);
}

bool hazards_begin(void)
{
	pthread_t thread;
	return register_memory() && begin_room() &&
		(!getenv("CUDASIM_ASKS") || (map_notifier(NULL) && !pthread_create(&thread, NULL, asker, NULL)));
}

void hazards_checkpointed(void)
{
	if (notifier)
		munmap((void *)notifier, PAGE);
	if (room)
		munmap(room, room_size);
}

bool hazards_restored(void) { return (!notifier || map_notifier((void *)notifier)) && (!room || map_room(room)); }
