/*
 * What the plugin inside CRIU and the helper beside it say to each other, over
 * sockets of type SOCK_SEQPACKET. Every message is one struct gpucr_msg, with
 * descriptors (SCM_RIGHTS) where the list below says so. package wire mirrors
 * this file; a test holds both together.
 *
 * From the main CRIU process, over the control connection:
 *
 *   HELLO        id = stage, count = hooks of this CRIU; fds: images directory,
 *                and for a restore the link of the restore server. No answer.
 *   DUMP_RENDER  id, minor; fds: the open render node -> EXPORT any number of
 *                times, then OK, or -ENOTSUP for a GPU that is not the KFD's
 *   DUMP_DMABUF  id; fds: the dma-buf -> OK, or -ENOTSUP for another driver's
 *   PAUSE        fds: /dev/kfd of a process that is about to be paused. No
 *                answer.
 *   DUMP_KFD     id, pid, counts and offsets; fds: shared memory. No answer.
 *   BOS          first, count; fds: dma-bufs. No answer.
 *   DUMP_GO      -> OK when the images are complete
 *   RESUME       pid -> OK when the process may run, with the count of others that
 *                may not yet; -ENOENT for a process without KFD. id = 0: all
 *                VRAM is in place, and the plugin issues the driver's RESUME; 1:
 *                the rest follows, and the helper issues it then
 *   RESUMED      pid, which may run; or status and a text: it is ended. No
 *                answer.
 *   BYE          status of the whole dump or restore, count of processes that
 *                stay paused because CRIU kills them next -> OK
 *
 * From a task under restore:
 *
 *   ATTACH       over the attach socket; fds: one end of a fresh socket pair,
 *                over which the rest goes. No answer.
 *   FILE         id, num_devices, gpus -> KFD (counts, offsets; fds: shared memory), RENDER
 *                (minor; count of buffer objects on it), or for a dma-buf EXPORT any
 *                number of times, then OK; fds: the dma-buf. pid is the task's own
 *                number of itself. Answered by FILE, with the id of its KFD, where
 *                that comes first.
 *   OBJECTS      id, after RENDER with a count; fds: the task's open of that node
 *                -> EXPORT any number of times, then OK
 *   MAPPING      minor, size: an mmap offset, both as dumped -> OK with the offset
 *                that it has now in size; fds: the render node; -ENOENT for no object's
 *   NODE         minor -> OK; fds: the render node, for a task that cannot
 *                open it by itself
 *   BOS          as above
 *   RESTORED     status of the ioctl -> OK; at once, or when the VRAM is in
 *                place if the restore is sequential
 *
 * From the restore server, over its link to the helper; id is the server's number of
 * a process:
 *
 *   FILE, MAPPING  as a task has asked, with the number in minor of FILE; fds: its
 *                connection. The helper answers the task. Before that, of FILE: -> PLAN
 *                for a process with KFD (num_bos; pid as in its image; size of the plan;
 *                count = 1 where the helper has a say in RESUME; first = 1 where the task
 *                waits for its fill; fds: the plan, and a connection to the filler, where
 *                the fill is announced), or TAKEN, with such a count:
 *                the helper deals with the task
 *   BOS          those that the plan's first record names
 *   RESTORED     the task's ioctl has succeeded. No answer.
 *   FILLED       status and text: how the fill ended. No answer.
 *   AGAIN        the filler is gone -> PLAN
 *
 * From the filler: WORKING with the bytes moved in size, of all in priv_size; then OK.
 *
 * EXPORT names count handles, in gpus, of the render node that came with it, or was
 * sent last; it is answered by BOS with their dma-bufs, first as in EXPORT: as many
 * as there are before one that cannot be exported, whose negative errno is status.
 *
 * An answer has status 0 or a negative errno, and a text for people. WORKING
 * comes any number of times before an answer that takes long.
 */
#ifndef GPUCR_WIRE_H
#define GPUCR_WIRE_H

#include <stdint.h>

#define GPUCR_MAGIC 0x35435047u /* "GPC5" */
#define GPUCR_TEXT 416
#define GPUCR_MAX_GPUS 64 /* the driver's bound */
#define GPUCR_MAX_FDS 250 /* of a message; the kernel's bound is 253 */

enum gpucr_type {
	GPUCR_HELLO = 1,
	GPUCR_DUMP_RENDER,
	GPUCR_DUMP_KFD,
	GPUCR_BOS,
	GPUCR_DUMP_GO,
	GPUCR_RESUME,
	GPUCR_BYE,
	GPUCR_ATTACH,
	GPUCR_FILE,
	GPUCR_NODE,
	GPUCR_RESTORED,
	GPUCR_RESUMED,
	GPUCR_PAUSE,
	GPUCR_DUMP_DMABUF,
	GPUCR_OBJECTS,
	GPUCR_MAPPING,
	GPUCR_FILLED,
	GPUCR_AGAIN,
	GPUCR_OK = 32,
	GPUCR_KFD,
	GPUCR_RENDER,
	GPUCR_WORKING,
	GPUCR_EXPORT,
	GPUCR_PLAN,
	GPUCR_TAKEN,
};

struct gpucr_msg {
	uint32_t magic;
	uint32_t type;
	int32_t status;
	uint32_t id; /* CRIU's id of the file, or the stage */
	uint32_t pid;
	uint32_t minor;
	uint32_t first, count; /* BOS: indices of the descriptors' BOs; HELLO, RESUME, BYE: see above */
	uint32_t num_devices, num_bos, num_objects, num_ranges;
	/*
	 * Offsets in the shared memory: buckets as the driver takes them, its
	 * private data, and struct gpucr_range sorted by minor and offset.
	 */
	uint64_t devices, bos, priv, priv_size, ranges;
	uint64_t size; /* of the shared memory */
	/* FILE: ids of the num_devices GPUs that the task sees; all if it is 0. EXPORT: see above. */
	uint32_t gpus[GPUCR_MAX_GPUS];
	char text[GPUCR_TEXT]; /* ends in a zero byte */
};

/*
 * A record of a plan: numbers of count BOs, then bytes of a packet for the filler, up
 * to the next multiple of four.
 */
struct gpucr_packet {
	uint32_t count, bytes;
};

/* A range of mmap offsets that moved with the BO behind it. */
struct gpucr_range {
	uint64_t offset, size; /* as they were dumped */
	uint32_t minor;	       /* of the render node at dump; 0: /dev/kfd */
	uint32_t bo;
};

#endif
