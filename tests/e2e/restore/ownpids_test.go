package restore

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// occupant is a process with the pid of its choice, and a session of that number; clone3 takes a list of pids.
const occupant = `
import ctypes, os, struct, sys, time
pid = (ctypes.c_int * 1)(int(sys.argv[1]))
args = struct.pack("11Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(pid), 1, 0)
got = ctypes.CDLL(None, use_errno=True).syscall(435, args, len(args))
if got == 0:
    os.setsid()
    print("there", flush=True)
    time.sleep(3600)
if got < 0:
    sys.exit("clone3: errno %d" % ctypes.get_errno())
os.waitpid(got, 0)
`

// occupy has a live process take a pid, until the test ends.
func occupy(t *testing.T, pid int) {
	t.Helper()
	cmd := exec.Command("python3", "-c", occupant, strconv.Itoa(pid))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		syscall.Kill(pid, syscall.SIGKILL)
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("pid %d is not to be had: %q, %v", pid, line, err)
	}
}

// own restores the process in a pid namespace of its own.
func (x *target) own(args ...string) (result, error) {
	x.Reset()
	out, err := x.b.try(append([]string{"restore", "--own-pids", "--json", x.b.store, x.name}, args...)...)
	if err != nil {
		return result{}, err
	}
	r := parse(x.b.t, out)
	x.Restored(r.Timeline.PID)
	return r, nil
}

// initOf gives the first process of the namespace that a restored process is in.
func initOf(t *testing.T, pid int) int {
	t.Helper()
	for up := pid; up > 1; {
		if n := procfs.Numbers(up); len(n) == 2 && n[1] == 1 {
			return up
		}
		f := procfs.Stat(fmt.Sprintf("/proc/%d/stat", up))
		if len(f) < 2 {
			break
		}
		up, _ = strconv.Atoi(f[1])
	}
	t.Fatalf("process %d is in no namespace of its own", pid)
	return 0
}

// end waits for the end of an init, whose parent is this test, and gives its exit status.
func end(t *testing.T, pid int) (status int) {
	t.Helper()
	must(t, poll(func() bool {
		var s syscall.WaitStatus
		got, err := syscall.Wait4(pid, &s, syscall.WNOHANG, nil)
		if status = s.ExitStatus(); s.Signaled() {
			status = -int(s.Signal())
		}
		return got == pid || err != nil && err != syscall.EINTR
	}))
	return status
}

// A process whose pid somebody else has is restored in a namespace of its own, filled there on demand, dumped
// from there, and restored again, with and without one.
func TestOwnPIDs(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 32, Threads: 3, Seed: 31, Quiet: true})
	t.Run("taken", func(t *testing.T) {
		occupy(t, x.pid)
		b.refused("one", "pids that the checkpoint needs are taken")
		file := filepath.Join(t.TempDir(), "a pidfile")
		r, err := x.own("--prefetch-rate", "8MiB", "--", "--pidfile", file)
		must(t, err)
		pid := r.Timeline.PID
		if n := procfs.Numbers(pid); r.Timeline.Inside != x.pid || !slices.Equal(n, []int{pid, x.pid}) {
			t.Errorf("process %d was restored as %d, %d inside; the kernel says %v", x.pid, pid, r.Timeline.Inside, n)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != strconv.Itoa(pid) {
			t.Errorf("the pidfile of process %d: %q, %v", pid, text, err)
		}
		must(t, x.Check(3, limit))
		if n := x.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
		init := initOf(t, pid)
		out, err := b.try("dump", b.store, "refused", "-t", strconv.Itoa(init))
		if cli.Code(err) != cli.Usage || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
			t.Errorf("a dump of the init: %s, %v", out, err)
		}
		b.run("dump", b.store, "left", "-t", strconv.Itoa(pid), "--leave-running")
		must(t, x.Check(3, limit))
		b.run("dump", b.store, "two", "-t", strconv.Itoa(pid))
		must(t, x.Dumped())
		if s := end(t, init); s != 128+int(syscall.SIGKILL) {
			t.Errorf("the init of a dumped process ended with %d", s)
		}
		for _, name := range []string{"left", "two"} {
			x.name = name
			_, err := x.own("--wait")
			must(t, err)
			must(t, x.Check(3, limit))
			x.Kill()
			must(t, b.left.Nothing())
		}
	})
	x.name = "two"
	x.mustRestore("--wait")
	if n := procfs.Numbers(x.PID); len(n) != 1 {
		t.Errorf("without a namespace its pids are %v", n)
	}
	must(t, x.Check(3, limit))
	x.Kill()
}

// family is a tree of sessions, groups and threads. Each of its processes ends with the status that its name
// tells when it is sent SIGTERM.
const family = `
import os, signal, sys, threading, time
def says(*_):
    with open(os.path.join(sys.argv[1], "says"), "w") as f:
        f.write("%d %d %d." % (os.getpid(), os.getsid(0), os.getpgid(0)))
def role(name, status):
    signal.signal(signal.SIGUSR1, says)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(status))
    with open(os.path.join(sys.argv[1], name), "w") as f:
        f.write(str(os.getpid()))
children = ("session", 3, os.setsid), ("group", 4, lambda: os.setpgid(0, 0)), ("plain", 5, lambda: None)
for name, status, begin in children:
    if os.fork() == 0:
        begin()
        if name == "session" and os.fork() == 0:
            role("grandchild", 6)
        else:
            role(name, status)
        break
else:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    role("root", 7)
while True:
    time.sleep(1)
`

// A tree keeps its numbers, sessions, groups and threads; a signal to the init goes on to the first process; the
// init ends with its status, after the last of them.
func TestOwnPIDsTree(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) // the init's parent, when its command has ended
	must(t, exec.Command("setsid", "--fork", "python3", "-c", family, dir).Run())
	was := map[string]int{}
	names := []string{"root", "session", "group", "plain", "grandchild"}
	must(t, poll(func() bool {
		for _, name := range names {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			if was[name], _ = strconv.Atoi(string(text)); was[name] == 0 {
				return false
			}
		}
		return true
	}))
	b.run("dump", b.store, "tree", "-t", strconv.Itoa(was["root"]), "--leave-running")
	defer syscall.Kill(was["root"], syscall.SIGKILL)
	for name, pid := range was {
		if name != "root" {
			defer syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	r := parse(t, b.run("restore", "--own-pids", "--json", "--wait", b.store, "tree"))
	init := initOf(t, r.Timeline.PID)
	now := map[string]int{}
	for name, pid := range was {
		now[name] = inside(init, pid)
		for _, ns := range []string{"NSsid", "NSpgid"} {
			before, after := field(pid, ns), field(now[name], ns)
			if len(before) != 1 || len(after) != 2 || before[0] != after[1] {
				t.Errorf("%s of %s: %v was restored as %v", ns, name, before, after)
			}
		}
		before, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		after, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", now[name]))
		if len(before) != len(after) || len(after) == 0 {
			t.Errorf("%d threads of %s were restored as %d", len(before), name, len(after))
		}
		// What it believes itself.
		says := filepath.Join(dir, "says")
		must(t, os.RemoveAll(says))
		must(t, syscall.Kill(now[name], syscall.SIGUSR1))
		want := fmt.Sprintf("%d %s %s.", pid, field(pid, "NSsid")[0], field(pid, "NSpgid")[0])
		if err := poll(func() bool { text, _ := os.ReadFile(says); return string(text) == want }); err != nil {
			text, _ := os.ReadFile(says)
			t.Errorf("%s should say %s, and says %q", name, want, text)
		}
	}
	// One that its parent does not wait for is reaped in the end, and does not end the init.
	must(t, syscall.Kill(init, syscall.SIGTERM))
	must(t, poll(func() bool { return procfs.Numbers(now["root"]) == nil }))
	if procfs.Program(init) == "" || procfs.Program(now["grandchild"]) == "" {
		t.Fatal("others have ended with the first process")
	}
	must(t, syscall.Kill(init, syscall.SIGTERM)) // now for all
	if s := end(t, init); s != 7 {
		t.Errorf("the init ended with %d, its first process with 7", s)
	}
	must(t, b.left.Nothing())
}

// inside finds the process with a number in the namespace of init.
func inside(init, number int) int {
	names, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range names {
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		its, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
		if n := procfs.Numbers(pid); ns == its && ns != "" && len(n) == 2 && n[1] == number {
			return pid
		}
	}
	return 0
}

func field(pid int, name string) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.Fields(rest)
}

// CRIU gets out of the way of the numbers that the images need, also of those it would get by chance.
func TestOwnPIDsHigh(t *testing.T) {
	b := newBench(t)
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	must(t, err)
	highest, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	x := b.dumped("one", lazytarget.Options{MB: 8, Threads: 2, Seed: 33, Quiet: true})
	_, err = x.own("--wait")
	must(t, err)
	must(t, x.Check(2, limit))
	// Who starts there next gets a number next to criu's.
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(x.PID), "-p", "-m", "sh", "-c",
		`exec setsid --fork "$0" "$@" </dev/null >/dev/null 2>&1`, targetBin)
	status := filepath.Join(t.TempDir(), "next")
	must(t, os.Mkdir(status, 0o700))
	next, err := lazytarget.Watch(status)
	must(t, err)
	defer next.Close()
	cmd.Args = append(cmd.Args, lazytarget.Options{MB: 8, Threads: 2, Seed: 34, Quiet: true}.Args(status)...)
	must(t, cmd.Run())
	must(t, next.Ready(time.Minute))
	pid := 0
	init := initOf(t, x.PID)
	must(t, poll(func() bool {
		for _, p := range procfs.Children(init) {
			if p != x.PID {
				pid = p
			}
		}
		return pid != 0
	}))
	number := procfs.Numbers(pid)[1]
	if number < highest-8192 {
		t.Fatalf("number %d is not near the highest, %d", number, highest)
	}
	b.run("dump", b.store, "high", "-t", strconv.Itoa(pid))
	must(t, poll(func() bool { return procfs.Program(pid) == "" }))
	x.Kill()
	next.Reset()
	r := parse(t, b.run("restore", "--own-pids", "--json", "--wait", b.store, "high"))
	if r.Timeline.Inside != number {
		t.Errorf("%d was restored as %d", number, r.Timeline.Inside)
	}
	next.Restored(r.Timeline.PID)
	must(t, next.Check(2, limit))
	next.Kill()
}

// A killed init takes everybody along; a killed command leaves nobody; a killed daemon is replaced.
func TestOwnPIDsKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 48, Threads: 2, Seed: 35})
	occupy(t, x.pid)
	rnd := source(t)
	for range *strikes {
		_, err := x.own(onDemand, "--prefetch-rate", "4MiB")
		must(t, err)
		must(t, x.Beats(5, limit))
		must(t, syscall.Kill(initOf(t, x.PID), syscall.SIGKILL))
		must(t, x.Ended(limit))
		must(t, b.left.Nothing())
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for range *strikes {
			x.Reset()
			cmd := program.Command("restore", "--own-pids", b.store, "one")
			must(t, cmd.Start())
			wait(rnd.IntN(200))
			cmd.Process.Signal(sig)
			if cmd.Wait() == nil {
				endInits(t)
			}
			must(t, poll(func() bool {
				endWhole(x)
				return len(program.Processes()) == 0
			}))
			if sig == syscall.SIGKILL {
				b.left.Killed()
			}
			must(t, b.left.Nothing())
		}
	}
	for range *strikes {
		_, err := x.own(onDemand, "--prefetch-rate", "4MiB")
		must(t, err)
		wait(rnd.IntN(300))
		for _, pid := range program.Role("daemon") {
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		must(t, x.Beats(20, limit))
		must(t, x.Stop(limit))
		if n := x.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
		must(t, quietly(b))
	}
}

// inits gives the first processes of namespaces that the program has made.
func inits() (pids []int) {
	for _, pid := range program.Processes() {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "gpucr-init\n" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func endInits(t *testing.T) {
	for _, pid := range inits() {
		must(t, unix.Kill(pid, unix.SIGKILL))
	}
}

// endWhole ends a restored process whose restore was complete when its command was killed: its init has been released.
func endWhole(x *target) {
	for _, init := range inits() {
		for _, pid := range procfs.Children(init) {
			if strings.HasPrefix(procfs.Program(pid), targetBin) && len(program.Role("guardian")) == 0 {
				unix.Kill(init, unix.SIGKILL)
			}
		}
	}
}
