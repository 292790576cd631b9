package plugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// patience is how long the plugin of shortPatience waits for a fill that does not go on, for one written STALL_MS.
const patience = "-DSTALL_MS=5000"

// shortPatience replaces the plugin by one that sooner finds that a fill stands still.
func (b *bench) shortPatience() {
	b.T.Helper()
	dir := b.T.TempDir()
	cc := filepath.Join(dir, "cc")
	if err := os.WriteFile(cc, []byte("#!/bin/sh\nexec cc "+patience+" \"$@\"\n"), 0o755); err != nil {
		b.T.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(b.Root, "scripts/plugin.sh"), filepath.Join(dir, "plugin"))
	cmd.Env = append(os.Environ(), "CC="+cc)
	if err := output(cmd); err != nil {
		b.T.Fatal(err)
	}
	b.plugin = filepath.Join(dir, "plugin")
}

// A daemon that has filled all buffer objects, and stands still before it says so, does not keep the restore for ever:
// it fails and says why.
func TestFillThatDoesNotEnd(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	b.shortPatience()
	store := b.mounted()
	// Without reading back, the driver is asked for a reset when every byte is in place, and then the fill has ended.
	b.env = append(b.env, "GPUCR_VERIFY=none")
	app := b.StartApp(1, "--interval", "1", "--bos", "4", "--max-bo", "65536", "--big-bo", "16777216")
	b.dump(app)
	b.gpucr("seal", store, "gpu")
	// The request for a context comes first, then that question: it is answered when the test has ended.
	if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: "DRM_IOCTL_AMDGPU_CTX", Errno: syscall.EINVAL,
		After: 1, Count: 1, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	defer b.Sim.ClearFaults()
	r := b.startCriu("restore", "-d")
	for b.waitsForVRAM(t, r); b.Sim.Struck() != 1; {
		b.waitsForVRAM(t, r) // it has, and criu may end
	}
	serving := b.daemons(store)
	for _, pid := range serving {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	err := r.wait()
	for _, pid := range serving {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	if said := b.criuLog("restore"); err == nil || len(serving) != 1 ||
		!strings.Contains(said, "its buffer objects are filled, but the fill has not ended for 5 s") {
		t.Errorf("restore while the daemon %v stood still: %v\n%s", serving, err, said)
	}
	app.WaitGone()
	b.noHelpers()
}
