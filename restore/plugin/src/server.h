/*
 * The table of the restore server: server.c has the thread, fills.c plans and fills.
 */
#ifndef GPUCR_SERVER_H
#define GPUCR_SERVER_H

#include "plugin.h"

#define MAX_FILLS 8	/* at once; the helper divides the staging memory by as many */
#ifndef STALL_MS
#define STALL_MS 120000 /* a fill that moves no byte and does not end for so long has failed */
#endif

enum state {
	FREE,
	NEW,	  /* attached, has asked nothing */
	ASKED,	  /* the helper makes the plan */
	PLANNED,  /* the task issues RESTORE */
	RESTORED, /* it waits for its fill to begin */
	FILLING,
	LOST, /* the helper finds a new daemon */
	FILLED,
	FAILED,
};

struct process {
	enum state state;
	uint32_t pid;	     /* in CRIU's namespace */
	uint32_t name;	     /* for people: the pid in the image */
	int pidfd, conn, fill; /* -1: none */
	bool sequential, waits, resumed;
	bool complete; /* all its bytes are moved and read back: what is left is to say so */
	uint32_t num_bos;
	int *bos; /* their dma-bufs, -1: none */
	char *plan;
	uint64_t plan_size, sent; /* how far packets are sent */
	unsigned tries;
	uint64_t done; /* bytes of the fill */
	int64_t moved; /* when the last of them did, or the fill began */
};

extern struct process *table;
extern uint32_t used;	/* of the table */
extern int link_end;	/* to the helper; -1: it has ended */
extern bool ask_helper; /* about RESUME, too */

int64_t now_ms(void);
void *take(size_t size);
void drop(int *fd);
void drop_all(int *fds, int n);

/* A word to the helper about a process. Its link tells when it is gone. */
void tell(const struct process *p, enum gpucr_type type, int status, const char *text);

/* The end of a process's fill. */
void give_up(struct process *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void filled(struct process *p, const char *text);

/* fills.c: hands the helper the buffer objects that it asks for: the plan's first record. */
bool hand_over(struct process *p);

/* Begins the fills that may begin. */
void begin_fills(void);

/* Reads a message of the filler. */
void on_fill(struct process *p, short events);

/* The helper has made the plan of a process, or found a successor of the daemon. */
void on_plan(struct process *p, const struct gpucr_msg *msg, int *fds, int count);

#endif
