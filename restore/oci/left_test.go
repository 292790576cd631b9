package oci

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shell starts a shell, called as said, in a folder, with a process below it, and gives both pids.
func shell(t *testing.T, name, dir string) (pid, below int) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(bash)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-c", "sleep 600 & echo $!; wait")
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if below, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(below, unix.SIGKILL)
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid, below
}

// again takes the lock as the next call does after a kill, which closes the file.
func again(t *testing.T, l *Lock, c Call) *Lock {
	t.Helper()
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := c.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestKilledLeaves: what a killed restore has made is ended by the next call, and nothing else.
func TestKilledLeaves(t *testing.T) {
	call, _ := calls(t, Restore)
	work, elsewhere := t.TempDir(), t.TempDir()
	l, err := call.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(work); err != nil {
		t.Fatal(err)
	}
	noted, belowNoted := shell(t, "runc", elsewhere)
	if done, err := l.Watch(noted); done || err != nil {
		t.Errorf("the runtime is all: %v", err)
	}
	working, belowWorking := shell(t, "criu", work)
	other, belowOther := shell(t, "other", work)
	stranger, belowStranger := shell(t, "criu", elsewhere)
	// A process of another run of the machine, and what was written when the restore was killed.
	line, err := json.Marshal(note{Boot: "another", PID: stranger, Began: began(stranger)})
	if err == nil {
		_, err = l.file.Write(append(line, []byte("\n{\"boot")...))
	}
	if err != nil {
		t.Fatal(err)
	}
	l = again(t, l, call)
	if err := l.Clear(); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{noted, belowNoted, working, belowWorking} {
		if began(pid) != 0 {
			t.Errorf("process %d of the restore goes on", pid)
		}
	}
	for _, pid := range []int{other, belowOther, stranger, belowStranger} {
		if began(pid) == 0 {
			t.Errorf("process %d of others has ended", pid)
		}
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// TestKilledMounts: where criu has mounted the machine's cgroups is unmounted, and nothing in them removed.
func TestKilledMounts(t *testing.T) {
	call, _ := calls(t, Restore)
	work, cgroups := t.TempDir(), t.TempDir()
	touch(t, filepath.Join(cgroups, "some", "group"))
	l, err := call.Lock(t.Context(), "")
	if err == nil {
		err = l.Begin(work)
	}
	if err != nil {
		t.Fatal(err)
	}
	yard := filepath.Join(work, ".criu.cgyard.abc")
	if err := os.Mkdir(yard, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", yard, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(yard, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	at := filepath.Join(yard, "cpu")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(cgroups, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	l = again(t, l, call)
	if err := l.Clear(); err != nil || there(yard) {
		t.Errorf("the mounts are there: %v; %v", there(yard), err)
	}
	if !there(filepath.Join(cgroups, "some", "group")) {
		t.Error("what was mounted has been removed")
	}
	if err := l.Release(); err != nil || there(l.folder+lockSuffix) {
		t.Errorf("the lock's file is left: %v", err)
	}
}

// TestKilledEarly: runc was killed before it mounted the container's root. A folder that is another's stays.
func TestKilledEarly(t *testing.T) {
	call, folder := calls(t, Restore)
	for _, c := range []struct {
		files []string
		stays bool
	}{{nil, false}, {[]string{"state-1234"}, false}, {[]string{"exec.fifo"}, true}} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range c.files {
			touch(t, filepath.Join(folder, f))
		}
		l, err := call.Lock(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Clear(), l.Release()); err != nil || there(folder) != c.stays {
			t.Errorf("with %v: the folder is there: %v; %v", c.files, there(folder), err)
		}
	}
}

// TestDeleteOfKilled: a container that a killed restore has made is removed with criu if that is asked for, and left
// alone where the runtime will refuse.
func TestDeleteOfKilled(t *testing.T) {
	call, folder := calls(t, Delete)
	work := t.TempDir()
	l, err := call.Lock(t.Context(), "")
	if err == nil {
		err = l.Begin(work)
	}
	if err != nil {
		t.Fatal(err)
	}
	criu, _ := shell(t, "criu", work)
	touch(t, filepath.Join(folder, stateFile))
	state := []byte(`{"init_process_pid": ` + strconv.Itoa(os.Getpid()) + `}`)
	if err := os.WriteFile(filepath.Join(folder, stateFile), state, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := call.BeforeDelete(""); got != nil || err != nil || began(criu) == 0 {
		t.Errorf("during a restore: %v, %v; criu goes on: %v", got, err, began(criu) != 0)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	gentle := Parse([]string{"--root", filepath.Dir(folder), Delete, "web"})
	if got, err := gentle.BeforeDelete(""); got != nil || err != nil || began(criu) == 0 {
		t.Errorf("without --force: %v, %v; criu goes on: %v", got, err, began(criu) != 0)
	}
	short := Parse([]string{"--root", filepath.Dir(folder), Delete, "-f", "web"})
	got, err := short.BeforeDelete("")
	if got == nil || err != nil || began(criu) != 0 {
		t.Fatalf("with --force: %v, %v; criu goes on: %v", got, err, began(criu) != 0)
	}
	if err := got.Release(); err != nil {
		t.Error(err)
	}
}
