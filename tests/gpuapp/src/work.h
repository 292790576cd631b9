/* What the application does: see main.c. */
#ifndef GPUAPP_WORK_H
#define GPUAPP_WORK_H

#include "gpu.h"

#define MAX_PROCS 16
#define STATUS_LEN 160

struct config {
	const char *dir;
	int procs, gpus, bos;
	uint64_t max_bo, big_bo, memory, cpu_bo;
	long interval_ms, ticks;
	uint64_t render_bo;
	bool own_event_page, keep_dmabuf, map_late, render_kfd, dmabuf_alone, render_userptr;
};

void status_write(const char *msg);

/* Makes the sockets over which process 0 gives the others its shared BOs. */
void share_prepare(const struct config *cfg);
void share_close(void);
void send_fd(int sock, int fd);
int recv_fd(int sock);
void sync_byte(int sock, bool send);

/* objects.c */
void objects_make(struct device *dev, const struct config *cfg, int index, int sock_of(int, int));
void objects_tick(struct device *dev, const struct config *cfg, int index, uint64_t round);

/* Works until cfg->ticks, or for ever. */
void work(const struct config *cfg, int index);

#endif
