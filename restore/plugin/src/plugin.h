#ifndef GPUCR_PLUGIN_H
#define GPUCR_PLUGIN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "criu_abi.h"
#include "wire.h"

#define DRM_MAJOR 226
#define FIRST_RENDER_MINOR 128
#define MAX_MINORS 128

#define say(level, fmt, ...) print_on_level(level, "amdgpu_plugin: " fmt "\n", ##__VA_ARGS__)
#define fail(fmt, ...) (say(LOG_ERROR, "Error: " fmt, ##__VA_ARGS__), -1)

/*
 * helper.c: the process beside CRIU and the way to it. Functions return 0, or a
 * negative errno after having told the log.
 */

/* The helper says WORKING every second; without a word it hangs. */
#define SILENCE_SECONDS 60

/* Starts the helper. On a restore, tasks attach over a socket in fdstore. */
int helper_start(int stage);
bool helper_started(void);

/* Whether it has ended, as far as its pidfd tells within a second. */
bool helper_gone(void);

/* A connection of this task's own, or a negative errno. */
int helper_attach(void);

/* One message, with count descriptors. */
int helper_send(int sock, const struct gpucr_msg *msg, const int *fds, int count);

/* The same without a word to the log, with flags of sendmsg. */
int helper_post(int sock, const struct gpucr_msg *msg, const int *fds, int count, int flags);
int helper_post_bytes(int sock, const void *bytes, size_t size, const int *fds, int count, int flags);

/* One message, with at most GPUCR_MAX_FDS descriptors: 1, 0 when none has come, or a negative errno. */
int helper_receive(int sock, struct gpucr_msg *msg, int *fds, int *count, int flags);

/* The descriptors of a list that are not -1, in as many messages as it takes. */
int helper_send_bos(int sock, const int32_t *fds, size_t stride, uint32_t count);

/*
 * The answer to what was sent, with a descriptor in *fd (-1 if none). An answer
 * with an error is one here, too, and told to the log unless it is -ENOTSUP or
 * -ENOENT.
 */
int helper_answer(int sock, struct gpucr_msg *msg, int *fd);

/* Sends over the control connection and waits for the answer. */
int helper_ask(struct gpucr_msg *msg);
int helper_ask_about(struct gpucr_msg *msg, const int *fds, int count);

/* The same, where the answer is EXPORT: exports objects of node until it is not. */
int helper_ask_objects(struct gpucr_msg *msg, int node);
int helper_tell(const struct gpucr_msg *msg, const int *fds, int count);
int helper_tell_bos(const int32_t *fds, size_t stride, uint32_t count);

/*
 * Says that CRIU is done, and waits until the helper has let go of the images. The
 * helper unpauses what of the paused processes outlives CRIU.
 */
int helper_bye(int status, uint32_t paused);

/*
 * ioctl.c: a request on /dev/kfd, again while the driver asks for that, up to a
 * bound. Returns 0, or a negative errno after having told the log.
 */
int kfd_ioctl(int fd, unsigned long request, void *args, const char *what);

/* The same without a word to the log, with the number of times that it was asked. */
int patient_ioctl(int fd, unsigned long request, void *args, int *tries);

/*
 * objects.c: answers EXPORT, the last message on a socket, and those that follow,
 * with the dma-bufs of objects of the render node *fd, if it is one, which is closed,
 * or of node. Returns as helper_answer does for the answer after them.
 */
int export_objects(int sock, int node, struct gpucr_msg *msg, int *fd);
bool is_dmabuf(int fd, const struct stat *st);

/* dump.c */
int dump_ext_file(int fd, int id);
int handle_device_vma(int fd, const struct stat *st);
void dump_done(int status);

/* restore.c */
int restore_ext_file(int id);
int update_vma_map(const char *path, uint64_t addr, uint64_t old_offset, uint64_t *new_offset, int *fd);
int resume_devices_late(int pid);
bool resume_failed(void);

/*
 * server.c: the restore server, a thread of the main CRIU process. It takes the
 * socket over which tasks attach, and one to the helper.
 */
int server_sockets(int tasks, int link);
int server_start(void);

/*
 * Waits until the buffer objects of all processes are filled: 0 when pid may go on,
 * with the count of others that have not, 1 when the helper has a say, too, -ENOENT
 * for a process that the server does not know, -EIO with a text when a fill failed.
 */
int server_gate(int pid, struct gpucr_msg *msg);
void server_resumed(int pid);
void server_stop(void);

/*
 * exitkill.c: holds the tree of CRIU's first task, pid, so that it dies with CRIU,
 * until it is let go.
 */
void exitkill_set(int pid);
void exitkill_clear(void);

#endif
