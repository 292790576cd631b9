package oci

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shell starts a shell, called as said, in a folder, with more in its environment and a process below it. It gives both
// pids.
func shell(t *testing.T, name, dir string, env ...string) (pid, below int) {
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
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
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

// birth tells when a process began, 0 where it has ended.
func birth(t *testing.T, pid int) uint64 {
	t.Helper()
	when, err := began(pid)
	if err != nil {
		t.Fatal(err)
	}
	return when
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
	mark, err := l.Begin(work)
	if err != nil {
		t.Fatal(err)
	}
	noted, belowNoted := shell(t, "runc", elsewhere)
	if done, err := l.Watch(noted); done || err != nil {
		t.Errorf("the runtime is all: %v", err)
	}
	working, belowWorking := shell(t, "criu", work, mark)
	other, belowOther := shell(t, "other", work, mark)
	stranger, belowStranger := shell(t, "criu", elsewhere)
	// The criu of another container's restore, which has the same work directory.
	another, belowAnother := shell(t, "criu", work, markVar+"another")
	yard := filepath.Join(work, ".criu.cgyard.abc")
	if err := os.Mkdir(yard, 0o700); err != nil {
		t.Fatal(err)
	}
	// A process of another run of the machine, and what was written when the restore was killed.
	line, err := json.Marshal(note{Boot: "another", PID: stranger, Began: birth(t, stranger)})
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
		if birth(t, pid) != 0 {
			t.Errorf("process %d of the restore goes on", pid)
		}
	}
	for _, pid := range []int{other, belowOther, stranger, belowStranger, another, belowAnother} {
		if birth(t, pid) == 0 {
			t.Errorf("process %d of others has ended", pid)
		}
	}
	if !there(yard) {
		t.Error("what the other criu has mounted is removed")
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
		_, err = l.Begin(work)
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
	var mark string
	if err == nil {
		mark, err = l.Begin(work)
	}
	if err != nil {
		t.Fatal(err)
	}
	criu, _ := shell(t, "criu", work, mark)
	touch(t, filepath.Join(folder, stateFile))
	state := fmt.Appendf(nil, `{"init_process_pid": %d, "init_process_start": %d}`, os.Getpid(), birth(t, os.Getpid()))
	if err := os.WriteFile(filepath.Join(folder, stateFile), state, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := call.BeforeDelete(""); got != nil || err != nil || birth(t, criu) == 0 {
		t.Errorf("during a restore: %v, %v; criu goes on: %v", got, err, birth(t, criu) != 0)
	}
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	gentle := Parse([]string{"--root", filepath.Dir(folder), Delete, "web"})
	if got, err := gentle.BeforeDelete(""); got != nil || err != nil || birth(t, criu) == 0 {
		t.Errorf("without --force: %v, %v; criu goes on: %v", got, err, birth(t, criu) != 0)
	}
	short := Parse([]string{"--root", filepath.Dir(folder), Delete, "-f", "web"})
	got, err := short.BeforeDelete("")
	if got == nil || err != nil || birth(t, criu) != 0 {
		t.Fatalf("with --force: %v, %v; criu goes on: %v", got, err, birth(t, criu) != 0)
	}
	if err := got.Release(); err != nil {
		t.Error(err)
	}
}

// TestOddFolders: what shells take as a pattern in the name of a folder is only a name. The mounts and folders of
// others stay.
func TestOddFolders(t *testing.T) {
	dir := t.TempDir()
	odd, other := filepath.Join(dir, "[w]*"), filepath.Join(dir, "work")
	for _, work := range []string{odd, other} {
		at := filepath.Join(work, ".criu.cgyard.abc")
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}
	touch(t, filepath.Join(odd, "web", "state-1"), filepath.Join(other, "web", "state-1"))
	call := Parse([]string{"--root", odd, Restore, "web"})
	l, err := call.Lock(t.Context(), "")
	if err == nil {
		_, err = l.Begin(odd)
	}
	if err != nil {
		t.Fatal(err)
	}
	l = again(t, l, call)
	if err := errors.Join(l.Clear(), l.Release()); err != nil {
		t.Error(err)
	}
	for _, f := range []string{".criu.cgyard.abc", "web"} {
		if there(filepath.Join(odd, f)) {
			t.Errorf("%s of the killed restore stays", f)
		}
		if !there(filepath.Join(other, f)) {
			t.Errorf("%s of another one is removed", f)
		}
	}
}

// TestRunsByStart: a process that has the pid of a container's first one after it is not that container.
func TestRunsByStart(t *testing.T) {
	folder := t.TempDir()
	for start, want := range map[uint64]bool{birth(t, os.Getpid()): true, 1: false} {
		text := fmt.Sprintf(`{"init_process_pid": %d, "init_process_start": %d}`, os.Getpid(), start)
		if err := os.WriteFile(filepath.Join(folder, stateFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := runs(folder); got != want || err != nil {
			t.Errorf("a container that began at %d runs: %v, %v", start, got, err)
		}
	}
}

// TestUsedByDeep: a process of somebody's that is deeper in folders than a path can name does not keep killed restores
// from being cleared.
func TestUsedByDeep(t *testing.T) {
	root, work, sleep := t.TempDir(), t.TempDir(), exec.Command("sleep", "600")
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with this goroutine, and so does its own working directory
		err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chdir(root))
		for name, n := strings.Repeat("d", 250), 0; err == nil && n < 20; n++ {
			err = errors.Join(unix.Mkdir(name, 0o700), unix.Chdir(name))
		}
		if err == nil {
			err = sleep.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	defer sleep.Wait()
	defer sleep.Process.Kill()
	if used, err := usedBy(work); used || err != nil {
		t.Errorf("used: %v, %v", used, err)
	}
}
