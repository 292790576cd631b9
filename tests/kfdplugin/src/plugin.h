#ifndef KFDPLUGIN_H
#define KFDPLUGIN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/kfd_ioctl.h>

#define MAX_GPUS 64

/* Appends a line to the file named by KFDPLUGIN_LOG, and returns -1. */
int note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The GPUs of this host, by topology node. */
struct host_gpu {
	uint32_t id;
	int minor;
};
int host_gpus(struct host_gpu *out);
int gpu_index(int minor); /* or -1 */

/* Reads and writes of a given length, or -1. */
int read_all(int fd, void *buf, uint64_t n);
int write_all(int fd, const void *buf, uint64_t n);

/*
 * Moves the contents of a BO between its dmabuf and a file, at the file's
 * offset: through the CPU where the driver lets the BO be mapped, else by SDMA.
 * KFDPLUGIN_COPY=sdma takes SDMA for all.
 */
int bo_contents(int minor, int dmabuf_fd, uint64_t size, int file, bool write_bo);

/* The image of a process's KFD: this head, devices, bos, private data. */
struct kfd_image {
	uint64_t magic;
	uint32_t num_devices, num_bos, num_objects, pad;
	uint64_t priv_size;
};
#define KFD_IMAGE_MAGIC 0x4d494644464bull

/* dump.c: saves the process behind a descriptor of its /dev/kfd. The process
 * stays paused until unpause_all. */
int dump_kfd(int fd, int id);
void unpause_all(void);

/* restore.c: makes the calling task that process again. */
int restore_kfd(int id);
int restore_render(int index);
int moved_vma(const char *path, uint64_t offset, uint64_t *new_offset, int *fd);

#endif
