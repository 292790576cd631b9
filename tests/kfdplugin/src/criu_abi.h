/*
 * What a CRIU plugin shares with criu 4.2: the descriptor with its 13 hooks and
 * two functions of the criu binary. A descriptor with more hooks is refused by
 * 4.2; RESTORE_EXT_FILE has one argument there.
 */
#ifndef KFDPLUGIN_CRIU_ABI_H
#define KFDPLUGIN_CRIU_ABI_H

#include <stdint.h>

enum {
	HOOK_DUMP_EXT_FILE = 2,
	HOOK_RESTORE_EXT_FILE = 3,
	HOOK_HANDLE_DEVICE_VMA = 7,
	HOOK_UPDATE_VMA_MAP = 8,
	HOOK_RESUME_DEVICES_LATE = 9,
	HOOK_PAUSE_DEVICES = 10,
	HOOK_CHECKPOINT_DEVICES = 11,
	HOOK_POST_FORKING = 12,
	HOOK_MAX = 13,
};

enum { STAGE_DUMP, STAGE_PRE_DUMP, STAGE_RESTORE };

struct plugin_desc {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int ret);
	unsigned int version, max_hooks;
	void *hooks[HOOK_MAX];
};

#define PLUGIN_VERSION 0x200

__attribute__((visibility("default"))) int criu_get_image_dir(void);

#endif
