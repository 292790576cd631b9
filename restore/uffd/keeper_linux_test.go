package uffd

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// keptRole makes the test program a guardian as its keeper sees it: it starts a
// keeper with a task, the first descriptor it is given besides the standard ones,
// tells its pid and waits to be killed, or when it is told to ends as a guardian
// does.
const keptRole = "kept-role"

func playKept() {
	k, err := startKeeper()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	k.task(firstFD)
	fmt.Println(k.pid)
	io.ReadAll(os.Stdin)
	k.end()
}

// kept is a process with a keeper and what it inherited.
type kept struct {
	cmd    *exec.Cmd
	in     io.Closer
	keeper string // its pid
}

func startKept(t *testing.T, files ...*os.File) *kept {
	t.Helper()
	k := &kept{cmd: exec.Command("/proc/self/exe", keptRole)}
	k.cmd.ExtraFiles, k.cmd.Stderr = files, os.Stderr
	out, err := k.cmd.StdoutPipe()
	if err == nil {
		k.in, err = k.cmd.StdinPipe()
	}
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.cmd.Process.Kill(); k.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	k.keeper = strings.TrimSpace(line)
	return k
}

// ends reports whether the keeper ends within a time.
func (k *kept) ends(timeout time.Duration) bool {
	for late := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		last := time.Now().After(late)
		stat, err := os.ReadFile("/proc/" + k.keeper + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return true
		}
		if last {
			return false
		}
	}
}

// What a guardian had when it was killed can be had from its keeper.
func TestKeeperKeeps(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 4)
	unix.CloseOnExec(fd)
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(dup), "userfaultfd")
	ours, wire, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	k := startKept(t, theirs, wire)
	theirs.Close()
	wire.Close()
	keep := newHeldFDs(slog.New(slog.DiscardHandler))
	keep.setKeeper(k.keeper)
	defer keep.drop()
	var cmdline []byte
	for late := time.Now().Add(time.Minute); strings.Trim(string(cmdline),
		"\x00") != keeperName; time.Sleep(time.Millisecond) {
		// It names itself as soon as it runs.
		if time.Now().After(late) {
			t.Fatalf("ps shows the keeper as %q", cmdline)
		}
		cmdline, _ = os.ReadFile("/proc/" + k.keeper + "/cmdline")
	}

	k.cmd.Process.Kill()
	// The provider hears of it by the connection.
	if n, err := ours.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("read %d from a guardian that was killed, %v", n, err)
	}
	keep.collect()
	if len(keep.uffds) != 1 {
		t.Fatalf("%d userfaultfds were kept", len(keep.uffds))
	}
	for _, fd := range keep.uffds {
		if errno := uffdProbe(fd, addrOf(mem), uint64(len(mem))); errno != unix.EINVAL {
			t.Errorf("the userfaultfd that was kept says %v", errno)
		}
	}
	if !k.ends(keeperTimeout * time.Second / 2) {
		t.Error("a keeper that was relieved goes on")
	}
}

// Whether all userfaultfds of a keeper were found is known: it is not ended before.
func TestUserfaultfds(t *testing.T) {
	fd := newUffd(t)
	list, err := userfaultfds("/proc/self/fd")
	if err != nil || !slices.Contains(list, fd) {
		t.Errorf("this process has %d; found %v, %v", fd, list, err)
	}
	if list, err := userfaultfds("/proc/1073741824/fd"); len(list) > 0 || err != nil {
		t.Errorf("a process that is gone has %v, %v", list, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := userfaultfds(dir); err == nil {
		t.Error("a descriptor that cannot be looked at was passed over")
	}
	release := descriptors.Lack(t)
	_, err = userfaultfds("/proc/self/fd")
	release()
	if err == nil {
		t.Error("descriptors that cannot be listed are none")
	}
}

// When nobody relieves it the keeper ends the tasks, and then itself.
func TestKeeperAlone(t *testing.T) {
	task := exec.Command("sleep", "600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer task.Process.Kill()
	pidfd, err := unix.PidfdOpen(task.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	handle := os.NewFile(uintptr(pidfd), "pidfd")
	// Handles of others are no tasks': of successors, say.
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	other := os.NewFile(uintptr(self), "pidfd")
	k := startKept(t, handle, other)
	handle.Close()
	other.Close()
	k.cmd.Process.Kill()
	begun := time.Now()
	err = task.Wait()
	if ws, ok := task.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !ws.Signaled() {
		t.Errorf("the task ended with %v", err)
	}
	if d := time.Since(begun); d < keeperTimeout*time.Second*9/10 {
		t.Errorf("the task was killed after %v, before the provider had its time", d)
	}
	if !k.ends(time.Minute) {
		t.Error("the keeper goes on when nothing is left")
	}
}

// A guardian that ends takes its keeper along.
func TestKeeperEnds(t *testing.T) {
	k := startKept(t)
	k.in.Close()
	if err := k.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !k.ends(time.Millisecond) {
		t.Error("the keeper is still there")
	}
}
