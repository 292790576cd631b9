/*
 * What a plugin shares with the criu binary: the descriptor, and functions that
 * the binary exports. CRIU_HOOKS is chosen by the build: 13 for CRIU 4.2, 15
 * for those after it, whose RESTORE_EXT_FILE has a second argument. CRIU refuses a
 * descriptor with more hooks than it has ("has 15 assigned while max 13
 * supported"); init refuses the reverse, where a task would wait on the value that
 * the one-argument hook leaves unset.
 */
#ifndef GPUCR_CRIU_ABI_H
#define GPUCR_CRIU_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef CRIU_HOOKS
#define CRIU_HOOKS 13
#endif
#if CRIU_HOOKS != 13 && CRIU_HOOKS != 15
#error "CRIU_HOOKS is 13 (CRIU 4.2) or 15 (later)"
#endif

enum {
	HOOK_DUMP_EXT_FILE = 2,
	HOOK_RESTORE_EXT_FILE = 3,
	HOOK_HANDLE_DEVICE_VMA = 7,
	HOOK_UPDATE_VMA_MAP = 8,
	HOOK_RESUME_DEVICES_LATE = 9,
	HOOK_POST_FORKING = 12,
};

enum { STAGE_DUMP, STAGE_PRE_DUMP, STAGE_RESTORE };
enum { LOG_ERROR = 1, LOG_WARN, LOG_INFO };

/* What becomes of the processes after a dump: the first field of CRIU's opts. */
enum { FINAL_ALIVE = 1, FINAL_DEAD, FINAL_STOPPED };

struct plugin_desc {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int ret);
	unsigned int version, max_hooks;
	void *hooks[CRIU_HOOKS];
};

#define PLUGIN_VERSION 0x200

#pragma GCC visibility push(default)
int criu_get_image_dir(void);
void print_on_level(unsigned int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int fdstore_add(int fd);
int fdstore_get(int id);
int add_inventory_plugin(const char *name);
bool check_and_remove_inventory_plugin(const char *name, size_t n);
#pragma GCC visibility pop

#endif
