package restore

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// parent starts a session of two processes, tells the first one's pid, and reaps it on SIGUSR1 and nobody else,
// although it is there for all.
const parent = `
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(36, 1)
p = os.fork()
if p == 0:
    os.setsid()
    os.fork()
    time.sleep(600)
def reap(*_):
    os.waitpid(p, 0)
    print("reaped", flush=True)
signal.signal(signal.SIGUSR1, reap)
print(p, flush=True)
while True:
    time.sleep(600)
`

// Who has the pids and sessions that a restore needs is named before criu is asked.
func TestPIDsTaken(t *testing.T) {
	b := newBench(t)
	x := b.start("target", lazytarget.Options{MB: 8, Threads: 2, Seed: 9, Quiet: true})
	b.run("dump", b.store, "target", "-t", strconv.Itoa(x.pid), "--leave-running")
	b.refused("target", fmt.Sprintf("%d (process %d (", x.pid, x.pid), "pids that the checkpoint needs are taken")
	must(t, x.Check(1, limit))

	cmd := exec.Command("python3", "-c", parent)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			t.Fatal("the parent has ended")
		}
		return lines.Text()
	}
	leader := next()
	pid, err := strconv.Atoi(leader)
	must(t, err)
	second := 0
	for end := time.Now().Add(limit); second == 0; wait(1) {
		fmt.Sscan(children(pid), &second)
		if time.Now().After(end) {
			t.Fatal("the session has one process")
		}
	}
	// It has the parent's pipe, which nobody restores.
	b.run("dump", b.store, "session", "-t", leader)
	b.refused("session", "a zombie that process "+strconv.Itoa(cmd.Process.Pid)+" (python3) has not reaped")
	must(t, cmd.Process.Signal(syscall.SIGUSR1))
	if s := next(); s != "reaped" {
		t.Fatal(s)
	}
	// Its leader is gone, and yet the session is there.
	b.refused("session", fmt.Sprintf("%s (process", leader), "of group "+leader, "has not reaped")
	must(t, cmd.Process.Kill())
	cmd.Wait()
	for end := time.Now().Add(limit); ; wait(5) {
		if _, err := b.try("restore", b.store, "session", "--wait"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
		syscall.Wait4(second, nil, syscall.WNOHANG, nil) // this test may have become its parent
	}
	syscall.Kill(-pid, syscall.SIGKILL)
}

// lateReaper starts a process in a session of its own, tells its pid, and reaps it half a second after its end.
const lateReaper = `
import os, time
p = os.fork()
if p == 0:
    os.setsid()
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    time.sleep(600)
print(p, flush=True)
os.waitid(os.P_PID, p, os.WEXITED | os.WNOWAIT)
time.sleep(.5)
os.waitpid(p, 0)
`

// A restore that follows a dump at once waits until the dumped process is reaped.
func TestRestoreBeforeReaped(t *testing.T) {
	b := newBench(t)
	cmd := exec.Command("python3", "-c", lateReaper)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	b.run("dump", b.store, "one", "-t", strconv.Itoa(pid))
	_, err = b.try("restore", b.store, "one", "--wait")
	syscall.Kill(pid, syscall.SIGKILL)
	must(t, err)
}

func children(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	return string(text)
}

// refused checks that a restore is refused, with these words, and that criu was not asked.
func (b *bench) refused(name string, words ...string) {
	b.t.Helper()
	out, err := b.try("restore", b.store, name)
	if err == nil {
		b.t.Fatalf("%s is restored: %s", name, out)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.t.Errorf("nothing of %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "criu restore:") {
		b.t.Errorf("criu was asked: %v", err)
	}
}
