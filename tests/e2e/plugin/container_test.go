package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

// container is the application in a runc container of its own pid, network, ipc,
// uts and mount namespaces.
type container struct {
	*bench
	bundle, name, work string
}

func newContainer(b *bench, args ...string) *container {
	t := b.T
	t.Helper()
	if _, err := exec.LookPath("runc"); err != nil {
		t.Fatalf("%v\nhint: apt-get install runc", err)
	}
	c := &container{bench: b, bundle: filepath.Join(b.Dir, "bundle"), name: "gpucr-plugin-test"}
	c.work = filepath.Join(c.bundle, "work")
	for _, d := range []string{"bin", "proc", "dev", "sys/class/kfd", "status"} {
		if err := os.MkdirAll(filepath.Join(c.bundle, "rootfs", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	app, err := os.ReadFile(b.App)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(c.spec(args))
	if err != nil {
		t.Fatal(err)
	}
	// runc passes criu neither the shim nor a plugin's folder.
	criu := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD=%s CRIU_LIBS_DIR=%s GPUCR_FS=%s\nexec %s \"$@\"\n", b.Shim, b.plugin, b.program, b.CRIU)
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{{"rootfs/bin/gpuapp", string(app), 0o755}, {"criu", criu, 0o755}, {"criu.conf", "network-lock skip\n", 0o644}, {"config.json", string(spec), 0o644}} {
		if err := os.WriteFile(filepath.Join(c.bundle, f.name), []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := c.runc("delete", "-f", c.name); err != nil {
			t.Error(err)
		}
	})
	return c
}

// spec is the container's runtime configuration.
func (c *container) spec(args []string) map[string]any {
	type list []any
	type object = map[string]any
	mounts := list{object{"destination": "/proc", "type": "proc", "source": "proc"},
		object{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755"}}}
	bind := func(from, to string) {
		mounts = append(mounts, object{"destination": to, "type": "bind", "source": from, "options": []string{"bind", "rw"}})
	}
	bind(filepath.Join(c.Sim.DevDir(), "kfd"), "/dev/kfd")
	for _, g := range c.Sim.Options().GPUs {
		node := fmt.Sprintf("dri/renderD%d", g.RenderMinor)
		bind(filepath.Join(c.Sim.DevDir(), node), "/dev/"+node)
	}
	bind(filepath.Join(c.Sim.SysDir(), "class/kfd"), "/sys/class/kfd")
	caps := []string{"CAP_DAC_READ_SEARCH", "CAP_KILL"}
	return object{
		"ociVersion": "1.0.2", "root": object{"path": "rootfs"}, "hostname": "gpu", "mounts": mounts,
		"annotations": object{"org.criu.config": filepath.Join(c.bundle, "criu.conf")},
		"process": object{"user": object{"uid": 0, "gid": 0}, "cwd": "/", "env": []string{"PATH=/bin"},
			"args":         append([]string{"/bin/gpuapp", "--dir", "/status"}, args...),
			"capabilities": object{"bounding": caps, "effective": caps, "permitted": caps}},
		"linux": object{"namespaces": list{object{"type": "pid"}, object{"type": "network"}, object{"type": "ipc"},
			object{"type": "uts"}, object{"type": "mount"}}},
	}
}

func (c *container) runc(args ...string) error {
	c.T.Helper()
	log := filepath.Join(c.bundle, args[0]+".log")
	cmd := c.Command("runc", append([]string{"--root", filepath.Join(c.bundle, "state"), "--log", log, "--criu", filepath.Join(c.bundle, "criu")}, args...)...)
	// A container keeps the standard files, and criu must know their mount.
	if err := c.startQuiet(cmd).wait(); err != nil {
		why, _ := os.ReadFile(log)
		return fmt.Errorf("%w: %s\n%s%s", err, why, rig.ErrorLines(filepath.Join(c.work, "dump.log")), rig.ErrorLines(filepath.Join(c.work, "restore.log")))
	}
	return nil
}

// round returns how often a process in the container has verified every BO.
func (c *container) round(proc int) int {
	c.T.Helper()
	line, err := os.ReadFile(filepath.Join(c.bundle, "rootfs/status", fmt.Sprintf("status.%d", proc)))
	if err != nil && !os.IsNotExist(err) {
		c.T.Fatal(err)
	}
	if strings.HasPrefix(string(line), "FAIL") {
		c.T.Fatalf("process %d: %s", proc, strings.TrimSpace(string(line)))
	}
	var tick, round int
	fmt.Sscanf(string(line), "tick %d round %d ok", &tick, &round) // 0, 0 while it starts
	return round
}

func (c *container) waitRounds(proc, round int) {
	c.T.Helper()
	for deadline := time.Now().Add(2 * time.Minute); c.round(proc) < round; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.T.Fatalf("process %d is in round %d\nsimulator: %+v", proc, c.round(proc), c.Sim.State())
		}
	}
}

// In a container's namespaces, through the mount.
func TestContainer(t *testing.T) {
	b := newBench(t, kfdsim.Options{})
	store := b.mounted()
	c := newContainer(b, "--procs", "2", "--interval", "1", "--max-bo", "262144")
	if err := c.runc("run", "-d", "--bundle", c.bundle, c.name); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.waitRounds(i, 1)
	}
	if err := c.runc("checkpoint", "--image-path", b.images, "--work-path", c.work, c.name); err != nil {
		t.Fatal(err)
	}
	b.gpucr("seal", store, "gpu")
	for deadline := time.Now().Add(time.Minute); len(b.Sim.State().Processes) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes left after the checkpoint: %+v", b.Sim.State().Processes)
		}
	}
	before := []int{c.round(0), c.round(1)}
	if err := c.runc("restore", "-d", "--bundle", c.bundle, "--image-path", b.images, "--work-path", c.work, c.name); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.waitRounds(i, before[i]+2)
	}
	b.noHelpers()
	b.noGPUErrors()
	if n := len(b.Sim.State().Processes); n != 2 {
		t.Errorf("%d processes use the gpus", n)
	}
}
