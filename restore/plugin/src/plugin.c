/*
 * The CRIU plugin for AMD GPUs. It takes the name of CRIU's own, so that either
 * restores what the other has dumped.
 *
 * All thinking is done by a helper (gpucr-fs plugin-helper), which this
 * plugin starts beside CRIU: it reads and writes images and maps GPUs. Here are the
 * things that CRIU and its tasks must do themselves, ioctls on /dev/kfd, opening
 * devices, answering hooks; and the restore server, a thread (server.c).
 *
 * CRIU ignores what RESUME_DEVICES_LATE returns. A process whose VRAM is not in
 * place is killed there; CRIU then cannot detach from it, and fails.
 */
#define _GNU_SOURCE
#include "plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "amdgpu_plugin"

static bool enabled = true;

/* The number of hooks of the CRIU around us, 0 if it does not tell: CRIU keeps a
 * list head for each, and one more. */
static int hooks_of_criu(void)
{
	void *lists = dlsym(RTLD_DEFAULT, "cr_plugin_ctl");
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	if (!lists || !dladdr1(lists, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
		return 0;
	return symbol->st_size / (2 * sizeof(void *)) - 1;
}

static int init(int stage)
{
	int hooks = hooks_of_criu();

	if (hooks && hooks != CRIU_HOOKS)
		return fail("this plugin is built for a CRIU of %d hooks, this one has %d "
			    "(build it with make plugin CRIU_HOOKS=%d)",
			    CRIU_HOOKS, hooks, hooks);
	if (stage != STAGE_RESTORE)
		return 0;
	enabled = check_and_remove_inventory_plugin(NAME, strlen(NAME));
	if (!enabled)
		return 0;
	say(LOG_INFO, "restores AMD GPU state, %d hooks", CRIU_HOOKS);
	return helper_start(STAGE_RESTORE);
}

static void fini(int stage, int ret)
{
	if (stage == STAGE_DUMP)
		dump_done(ret);
	server_stop();
	if (helper_started())
		helper_bye(ret, 0);
	if (stage == STAGE_RESTORE && !ret && resume_failed()) {
		/* CRIU is about to report success: processes are gone. */
		say(LOG_ERROR, "Error: the restore failed, see above");
		_exit(1);
	}
}

static int restore_file(int id
#if CRIU_HOOKS > 13
			, bool *retry_needed
#endif
)
{
#if CRIU_HOOKS > 13
	*retry_needed = false;
#endif
	return enabled ? restore_ext_file(id) : -ENOTSUP;
}

static int post_forking(void)
{
	return enabled && helper_started() ? server_start() : -ENOTSUP;
}

static int update_vma(const char *path, uint64_t addr, uint64_t old_offset, uint64_t *new_offset, int *fd)
{
	return enabled ? update_vma_map(path, addr, old_offset, new_offset, fd) : -ENOTSUP;
}

static int resume_late(int pid)
{
	return enabled && helper_started() ? resume_devices_late(pid) : -ENOTSUP;
}

__attribute__((visibility("default"))) struct plugin_desc CR_PLUGIN_DESC = {
	.name = NAME,
	.init = init,
	.exit = fini,
	.version = PLUGIN_VERSION,
	.max_hooks = CRIU_HOOKS,
	.hooks = {
		[HOOK_DUMP_EXT_FILE] = dump_ext_file,
		[HOOK_RESTORE_EXT_FILE] = restore_file,
		[HOOK_HANDLE_DEVICE_VMA] = handle_device_vma,
		[HOOK_UPDATE_VMA_MAP] = update_vma,
		[HOOK_RESUME_DEVICES_LATE] = resume_late,
		[HOOK_POST_FORKING] = post_forking,
	},
};
