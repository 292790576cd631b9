package runc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

const limit = 2 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// container is one process in a container of its own pid, network, ipc, uts and mount namespaces.
type container struct {
	t      *testing.T
	bundle string
	name   string
	criu   string
	mem    *lazytarget.Target

	runtime string // the program that is called: runc, or gpucr-runc
}

func newContainer(t *testing.T, dir string) *container {
	t.Helper()
	// Installs runc on Debian where it is missing.
	need := exec.Command("../../../scripts/need.sh", "runc:runc")
	if out, err := need.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	criu, err := cli.FindCRIU()
	must(t, err)
	c := &container{t: t, bundle: filepath.Join(dir, "bundle"), name: fmt.Sprintf("gpucr-fs-test-%d", os.Getpid()),
		criu: criu, runtime: "runc"}
	rootfs := filepath.Join(c.bundle, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "status"} {
		must(t, os.MkdirAll(filepath.Join(rootfs, d), 0o755))
	}
	_, err = lazytarget.Build(filepath.Join(rootfs, "bin"))
	must(t, err)
	c.mem, err = lazytarget.Watch(filepath.Join(rootfs, "status"))
	must(t, err)
	t.Cleanup(func() { c.mem.Close() })
	conf := filepath.Join(c.bundle, "criu.conf")
	must(t, os.WriteFile(conf, []byte("network-lock skip\n"), 0o644))
	type list []any
	type object = map[string]any
	o := lazytarget.Options{MB: 48, Threads: 1, Seed: 21, Quiet: true}
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "rootfs"},
		"hostname":   "test",
		"mounts": list{object{"destination": "/proc", "type": "proc", "source": "proc"},
			object{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755"}}},
		"annotations": object{"org.criu.config": conf},
		"process": object{"user": object{"uid": 0, "gid": 0}, "cwd": "/", "env": []string{"PATH=/bin"},
			"args": append([]string{"/bin/lazytarget"}, o.Args("/status")...)},
		"linux": object{"namespaces": list{object{"type": "pid"}, object{"type": "network"}, object{"type": "ipc"},
			object{"type": "uts"}, object{"type": "mount"}}},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.bundle, "config.json"), spec, 0o644))
	t.Cleanup(func() {
		if err := c.runc("delete", "-f", c.name); err != nil {
			t.Error(err)
		}
	})
	return c
}

// runc runs a command of runc. A container must not keep pipes of the test's.
func (c *container) runc(args ...string) error {
	log := filepath.Join(c.bundle, args[0]+".log")
	cmd := exec.Command(c.runtime,
		append([]string{"--root", filepath.Join(c.bundle, "state"), "--log", log, "--criu", c.criu}, args...)...)
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		why, _ := os.ReadFile(log)
		return fmt.Errorf("%s %s: %w: %s", c.runtime, args[0], err, why)
	}
	return nil
}

// errorLines gives the end of CRIU's log.
func errorLines(work, name string) string {
	text, _ := os.ReadFile(filepath.Join(work, name))
	return string(text[max(0, len(text)-2000):])
}

// Runc restores a container from the mount, with our lazy-pages server in place of CRIU's: first and later restores,
// from the image directory of the checkpoint and from the root of a mount that shows it.
func TestContainer(t *testing.T) {
	// What the container leaves is for init to reap, and this may be the only one.
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir := t.TempDir()
	program, err := cli.Build(dir)
	must(t, err)
	t.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	run := func(args ...string) {
		t.Helper()
		if _, err := program.RunIn(limit, args...); err != nil {
			t.Fatalf("%v\n%s", err, cli.Log(filepath.Join(dir, "store")))
		}
	}
	store, mnt := filepath.Join(dir, "store"), filepath.Join(dir, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	run("init", store)
	left := program.WatchLeft(store)
	run("mount", store, mnt)
	t.Cleanup(func() {
		if len(cli.Mounts(store)) > 0 {
			_, err := program.RunIn(limit, "umount", "--force", mnt)
			err = errors.Join(err, left.Nothing())
			if err != nil {
				t.Error(err)
			}
		}
	})

	c := newContainer(t, dir)
	must(t, c.runc("run", "-d", "--bundle", c.bundle, c.name))
	must(t, c.mem.Ready(limit))
	images, work := filepath.Join(mnt, ".checkpoints", "web"), filepath.Join(dir, "work")
	must(t, os.Mkdir(images, 0o700))
	if err := c.runc("checkpoint", "--image-path", images, "--work-path", work, c.name); err != nil {
		t.Fatalf("%v\n%s", err, errorLines(work, "dump.log"))
	}
	run("seal", store, "web")

	for i, images := range []string{images, mnt, images} {
		work := filepath.Join(dir, fmt.Sprintf("work-%d", i))
		must(t, os.Mkdir(work, 0o700))
		c.mem.Reset()
		run("lazy-pages", "-d", "-D", images, "-W", work)
		if err := c.runc("restore", "-d", "--bundle", c.bundle, "--image-path", images, "--work-path", work,
			"--lazy-pages", c.name); err != nil {
			t.Fatalf("%v\n%s\n%s", err, errorLines(work, "restore.log"), cli.Log(store))
		}
		must(t, c.mem.Check(1, limit))
		// The command ends when all is there; one guardian waits for the next restore.
		for end := time.Now().Add(limit); len(program.Role("lazy-pages")) > 0 ||
			len(program.Role("guardian")) > 1; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the lazy-pages server does not end\n%s", cli.Log(store))
			}
		}
		must(t, c.mem.Check(1, limit))
		must(t, c.runc("delete", "-f", c.name))
	}
	run("profile", "show", store, "web")
	run("umount", mnt)
	must(t, left.Nothing())
}
