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

	if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.KFDIocCRIUOp.String(), Errno: syscall.EINVAL, Count: 1}); err != nil {
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
