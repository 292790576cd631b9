package plugin

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// What cannot work is refused with a reason, and leaves the application or the
// machine as it was.
func TestRefusals(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}, {}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "8", "--max-bo", "65536")
	pid := strconv.Itoa(app.PID)
	fails := func(action, want string, args ...string) {
		t.Helper()
		if err := b.criu(append([]string{action}, args...)...); err == nil {
			t.Fatalf("criu %s succeeded, expected %q", action, want)
		}
		if log := b.criuLog(action); !strings.Contains(log, want) {
			t.Errorf("criu %s failed without %q:\n%s", action, want, log)
		}
		b.noHelpers()
	}

	usual := b.plugin
	b.plugin = b.Built("gpucr-plugin-later", func(dir string) error {
		return output(exec.Command(filepath.Join(b.Root, "scripts/plugin.sh"), dir, "15"))
	})
	fails("dump", "has 15 assigned while max 13 supported", "-t", pid)
	b.plugin = usual

	program := b.program
	b.program = filepath.Join(b.Dir, "nowhere")
	fails("dump", "nowhere: No such file or directory (name the program in GPUCR_FS)", "-t", pid)
	b.program = program

	b.env = []string{"GPUCR_PARALLEL=perhaps"}
	fails("dump", "Error: GPUCR_PARALLEL=perhaps is neither 0 nor 1", "-t", pid)
	b.env = nil
	app.WaitRounds(1)
	b.dump(app)

	if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.KFDIocCRIUOp.String(),
		Errno: syscall.EINVAL, Count: 1}); err != nil {
		t.Fatal(err)
	}
	fails("restore", "Error: RESTORE of 2 GPUs", "-d")
	app.WaitGone()

	b.Replace(kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	fails("restore", "its GPUs do not map onto this host's", "-d")
	app.WaitGone()

	b.Replace(kfdsim.Options{GPUs: []kfdsim.GPU{{}, {}}})
	b.restore()
	app.WaitRounds(1)
	app.Kill()
}

// A CRIU of so many hooks, as far as the plugin's descriptor and init go.
const host = `
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
void *cr_plugin_ctl[2 * (HOOKS + 1)];
void print_on_level(unsigned int level, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
}
int main(int argc, char **argv)
{
	void *lib = dlopen(argv[1], RTLD_LAZY);
	struct { const char *name; int (*init)(int); void (*exit)(int, int); unsigned int version, max_hooks; } *desc;
	if (!lib || !(desc = dlsym(lib, "CR_PLUGIN_DESC")))
		return 1;
	printf("%s of %u hooks: %d\n", desc->name, desc->max_hooks, desc->init(0));
	desc->exit(0, 0);
	return 0;
}
`

// A plugin and a CRIU of different hooks do not come together, whichever has
// more; CRIU refuses one case, the plugin the other.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, hooks := range []string{"13", "15"} {
		if err := output(exec.Command(filepath.Join(root, "scripts/plugin.sh"), filepath.Join(dir, hooks),
			hooks)); err != nil {
			t.Fatal(err)
		}
		cc := exec.Command("cc", "-x", "c", "-rdynamic", "-DHOOKS="+hooks, "-o", filepath.Join(dir, "criu-"+hooks), "-")
		cc.Stdin = strings.NewReader(host)
		if err := output(cc); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ criu, plugin, want string }{
		{"13", "13", "amdgpu_plugin of 13 hooks: 0\n"},
		{"15", "15", "amdgpu_plugin of 15 hooks: 0\n"},
		{"15", "13", "built for a CRIU of 13 hooks, this one has 15 (build it with make plugin CRIU_HOOKS=15)\n" +
			"amdgpu_plugin of 13 hooks: -1\n"},
	} {
		out, err := exec.Command(filepath.Join(dir, "criu-"+tc.criu),
			filepath.Join(dir, tc.plugin, "gpucr_plugin.so")).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), tc.want) {
			t.Errorf("plugin of %s hooks in a CRIU of %s: %v: %q", tc.plugin, tc.criu, err, out)
		}
	}
}
