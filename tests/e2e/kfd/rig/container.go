package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Container is the test application in a runc container of its own pid, network,
// ipc, uts and mount namespaces, with nothing but the devices, the topology and
// the application in it.
type Container struct {
	rig                *Rig
	bundle, work, name string
	args               []string
	swapped            bool // names of the first two render nodes
}

// roundLimit bounds what WaitRounds waits for.
const roundLimit = 2 * time.Minute

// NewContainer makes a container that runs the application with args. criuEnv is
// what criu is to have in its environment besides the shim: runc passes neither
// that nor the folder of its plugins.
func (r *Rig) NewContainer(criuEnv []string, args ...string) *Container {
	r.T.Helper()
	if _, err := exec.LookPath("runc"); err != nil {
		r.T.Fatalf("%v\nhint: apt-get install runc", err)
	}
	c := &Container{rig: r, bundle: filepath.Join(r.Dir, "bundle"), name: fmt.Sprintf("gpucr-rig-%d", os.Getpid()),
		args: args}
	c.work = filepath.Join(c.bundle, "work")
	for _, d := range []string{"bin", "proc", "dev", "sys/class/kfd", "status"} {
		if err := os.MkdirAll(filepath.Join(c.bundle, "rootfs", d), 0o755); err != nil {
			r.T.Fatal(err)
		}
	}
	app, err := os.ReadFile(r.App)
	if err != nil {
		r.T.Fatal(err)
	}
	criu := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD=%s %s\nexec %s \"$@\"\n", r.Shim, strings.Join(criuEnv, " "),
		r.CRIU)
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
	}{{"rootfs/bin/gpuapp", string(app), 0o755}, {"criu", criu, 0o755}, {"criu.conf", "network-lock skip\n", 0o644}} {
		if err := os.WriteFile(filepath.Join(c.bundle, f.name), []byte(f.content), f.mode); err != nil {
			r.T.Fatal(err)
		}
	}
	c.configure()
	r.T.Cleanup(func() {
		if err := c.runc("delete", "-f", c.name); err != nil {
			r.T.Error(err)
		}
	})
	return c
}

// SwapNodes has the next restore call the first render node as the second was
// called, and the other way round.
func (c *Container) SwapNodes() {
	c.rig.T.Helper()
	c.swapped = !c.swapped
	c.configure()
}

func (c *Container) configure() {
	c.rig.T.Helper()
	spec, err := json.Marshal(c.spec())
	if err == nil {
		err = os.WriteFile(filepath.Join(c.bundle, "config.json"), spec, 0o644)
	}
	if err != nil {
		c.rig.T.Fatal(err)
	}
}

// spec is the container's runtime configuration.
func (c *Container) spec() map[string]any {
	type list []any
	type object = map[string]any
	mounts := list{object{"destination": "/proc", "type": "proc", "source": "proc"},
		object{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755"}}}
	bind := func(from, to string) {
		mounts = append(mounts,
			object{"destination": to, "type": "bind", "source": from, "options": []string{"bind", "rw"}})
	}
	sim := c.rig.Sim
	bind(filepath.Join(sim.DevDir(), "kfd"), "/dev/kfd")
	gpus := sim.Options().GPUs
	for i, g := range gpus {
		if c.swapped && i < 2 {
			g = gpus[1-i]
		}
		bind(filepath.Join(sim.DevDir(), fmt.Sprintf("dri/renderD%d", gpus[i].RenderMinor)),
			fmt.Sprintf("/dev/dri/renderD%d", g.RenderMinor))
	}
	bind(filepath.Join(sim.SysDir(), "class/kfd"), "/sys/class/kfd")
	// The application opens dmabufs by file handle, as on no hardware.
	caps := []string{"CAP_DAC_READ_SEARCH", "CAP_KILL"}
	return object{
		"ociVersion": "1.0.2", "root": object{"path": "rootfs"}, "hostname": "gpu", "mounts": mounts,
		"annotations": object{"org.criu.config": filepath.Join(c.bundle, "criu.conf")},
		"process": object{"user": object{"uid": 0, "gid": 0}, "cwd": "/", "env": []string{"PATH=/bin"},
			"args":         append([]string{"/bin/gpuapp", "--dir", "/status"}, c.args...),
			"capabilities": object{"bounding": caps, "effective": caps, "permitted": caps}},
		"linux": object{"namespaces": list{object{"type": "pid"}, object{"type": "network"}, object{"type": "ipc"},
			object{"type": "uts"}, object{"type": "mount"}}},
	}
}

// Run starts the container.
func (c *Container) Run() error { return c.runc("run", "-d", "--bundle", c.bundle, c.name) }

// Checkpoint dumps it into a folder and ends it.
func (c *Container) Checkpoint(images string) error {
	return c.runc("checkpoint", "--image-path", images, "--work-path", c.work, c.name)
}

// Restore restores it.
func (c *Container) Restore(images string) error {
	return c.runc("restore", "-d", "--bundle", c.bundle, "--image-path", images, "--work-path", c.work, c.name)
}

// runc runs a command of runc. A container must not keep pipes of the test's.
func (c *Container) runc(args ...string) error {
	log := filepath.Join(c.bundle, args[0]+".log")
	cmd := c.rig.Command("runc",
		append([]string{"--root", filepath.Join(c.bundle, "state"), "--log", log, "--criu",
			filepath.Join(c.bundle, "criu")}, args...)...)
	if err := cmd.Run(); err != nil {
		why, _ := os.ReadFile(log)
		return fmt.Errorf("runc %s: %w: %s\n%s\n%s", args[0], err, why, ErrorLines(filepath.Join(c.work, "dump.log")),
			ErrorLines(filepath.Join(c.work, "restore.log")))
	}
	return nil
}

// Round returns how often a process in the container has verified every BO.
func (c *Container) Round(proc int) int {
	t := c.rig.T
	t.Helper()
	line, err := os.ReadFile(filepath.Join(c.bundle, "rootfs/status", fmt.Sprintf("status.%d", proc)))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if strings.HasPrefix(string(line), "FAIL") {
		t.Fatalf("process %d: %s", proc, strings.TrimSpace(string(line)))
	}
	var tick, round int
	fmt.Sscanf(string(line), "tick %d round %d ok", &tick, &round) // 0, 0 while it starts
	return round
}

// WaitRounds waits until a process has reached a round.
func (c *Container) WaitRounds(proc, round int) {
	t := c.rig.T
	t.Helper()
	for deadline := time.Now().Add(roundLimit); c.Round(proc) < round; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is in round %d\nsimulator: %+v", proc, c.Round(proc), c.rig.Sim.State())
		}
	}
}
