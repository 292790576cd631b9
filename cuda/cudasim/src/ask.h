/* How the driver of one process asks that of another. */
#include <stdbool.h>
#include <stdint.h>

enum { MAX_PAIRS = 16 };

struct pair {
	unsigned char from[16], to[16];
};
struct message {
	uint32_t op, timeout_ms, count;
	struct pair pairs[MAX_PAIRS];
};
struct answer {
	int32_t result, value;
};

/* ask_begin lets others ask this process; ask_end takes that from a forked child. */
bool ask_begin(void);
void ask_end(void);
/*
 * ask_next gives the next message that came, and where its answer goes, -1 when there was none; ask_answer answers it.
 */
int ask_next(struct message *m);
void ask_answer(int fd, const struct answer *a);
/* ask_process asks another. False: errno is 0 where the process could be asked and has not answered. */
bool ask_process(int pid, const struct message *m, struct answer *a);
/* process_of gives the process of a thread: the driver takes either. */
int process_of(int tid);
