/*
 * Requests of the driver's that it may put off. EAGAIN is its word for "in a
 * moment": while it moves memory or resets a GPU. The whole tree stands meanwhile,
 * so the moment has an end here.
 */
#define _GNU_SOURCE
#include "kfd.h"
#include "plugin.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define PATIENCE_MS 5000
#define MAX_TRIES 2000
#define FIRST_PAUSE_US 50
#define LAST_PAUSE_US 20000

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int patient_ioctl(int fd, unsigned long request, void *args, int *tries)
{
	int64_t began = now_ms();
	long pause_us = FIRST_PAUSE_US;

	for (*tries = 1; ioctl(fd, request, args); ++*tries) {
		struct timespec pause = { .tv_nsec = pause_us * 1000 };
		int err = errno;

		if ((err != EINTR && err != EAGAIN) || *tries == MAX_TRIES || now_ms() - began >= PATIENCE_MS)
			return -err;
		if (err == EINTR)
			continue;
		nanosleep(&pause, NULL);
		if (pause_us < LAST_PAUSE_US)
			pause_us *= 2;
	}
	return 0;
}

int kfd_ioctl(int fd, unsigned long request, void *args, const char *what)
{
	int64_t began = now_ms();
	int tries, ret = patient_ioctl(fd, request, args, &tries);

	if (ret == -EINTR || ret == -EAGAIN)
		say(LOG_ERROR, "Error: %s: the driver puts it off for ever: %s, asked %d times in %lld ms "
			       "(hint: does it say more in dmesg?)",
		    what, strerror(-ret), tries, (long long)(now_ms() - began));
	else if (ret)
		say(LOG_ERROR, "Error: %s: %s", what, strerror(-ret));
	return ret;
}
