/* One line is asked and one answered per connection, on a socket of the file system. */
#ifndef CONTROL_H
#define CONTROL_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static int listening(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (strlen(path) >= sizeof a.sun_path)
		exit(2);
	strcpy(a.sun_path, path);
	if (l < 0 || bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 16))
		fail("listen");
	return l;
}

/* question takes the next connection and reads its line. */
static int question(int l, char *line, size_t size)
{
	for (;;) {
		int fd = accept(l, NULL, NULL);
		size_t n = 0;
		if (fd < 0)
			continue;
		while (n < size - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
			n++;
		line[n] = 0;
		if (n)
			return fd;
		close(fd);
	}
}

static void answer(int fd, const char *text, unsigned long long n)
{
	char line[200];
	int len = snprintf(line, sizeof line, "%s %llu\n", text, n);
	if (write(fd, line, (size_t)len) != len)
		fprintf(stderr, "an answer is lost\n");
	close(fd);
}
#endif
