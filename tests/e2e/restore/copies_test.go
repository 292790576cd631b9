package restore

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// copies is what restore --copies --json prints.
type copies struct {
	Copies []struct {
		Copy int
		result
		Error string
	}
}

func parseCopies(t *testing.T, out string) (c copies) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

// Four copies of one process, beside somebody who has its pid: each gets its own memory on demand, from one
// daemon, also when that is killed meanwhile.
func TestCopies(t *testing.T) {
	b := newBench(t)
	const n, threads = 4, 2
	x := b.dumped("one", lazytarget.Options{MB: 24, Threads: threads, Seed: 41, Quiet: true})
	occupy(t, x.pid)
	for _, kill := range []bool{false, true} {
		x.Reset()
		files := filepath.Join(t.TempDir(), "file")
		c := parseCopies(
			t,
			b.run("restore", "--copies", strconv.Itoa(n), "--prefetch-rate", "4MiB", "--json", b.store, "one",
				"--", "--pidfile", files, "--log-file", files+".log"),
		)
		if d := program.Role("daemon"); len(d) != 1 {
			t.Errorf("%d copies have daemons %v", n, d)
		}
		var pids []int
		for i, one := range c.Copies {
			pid := one.Timeline.PID
			pids = append(pids, pid)
			if at := procfs.Numbers(pid); one.Copy != i+1 || one.Error != "" || !slices.Equal(at, []int{pid, x.pid}) {
				t.Errorf("copy %d: pids %v, %q", one.Copy, at, one.Error)
			}
			text, err := os.ReadFile(files + "." + strconv.Itoa(i+1))
			if err != nil || string(text) != strconv.Itoa(pid) {
				t.Errorf("pidfile of copy %d, process %d: %q, %v", i+1, pid, text, err)
			}
			if _, err := os.Stat(files + ".log." + strconv.Itoa(i+1)); err != nil {
				t.Error(err)
			}
		}
		if slices.Sort(pids); len(slices.Compact(pids)) != n {
			t.Fatalf("pids of %d copies: %v", n, pids)
		}
		if kill {
			for _, pid := range program.Role("daemon") {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		must(t, x.Check(n*threads, limit)) // they share the file that tells them to
		if bad := x.SIGBUS(); bad != 0 {
			t.Errorf("%d pages could not be read", bad)
		}
		for _, pid := range pids {
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		must(t, quietly(b))
	}
}

// A command that is interrupted or killed while it restores copies leaves whole ones or none.
func TestCopiesKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 8, Threads: 1, Seed: 42, Quiet: true})
	rnd := source(t)
	for i := range 2 * *strikes {
		x.Reset()
		cmd := program.Command("restore", "--copies", "3", b.store, "one")
		must(t, cmd.Start())
		wait(rnd.IntN(300))
		cmd.Process.Signal([]os.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
		cmd.Wait()
		must(t, poll(func() bool {
			endWhole(x)
			return len(program.Processes()) == 0
		}))
		b.left.Killed()
		must(t, b.left.Nothing())
	}
}

// listening has a port, a unix socket, and a deleted file open.
const listening = `
import os, socket, sys, time
a, b = socket.socket(), socket.socket(socket.AF_UNIX)
if "port" in sys.argv:
    a.bind(("127.0.0.1", 0))
    a.listen()
if "socket" in sys.argv:
    b.bind(os.path.join(sys.argv[1], "sock"))
    b.listen()
if "driver" in sys.argv: # NVIDIA's listens there, in each process
    ns = os.stat("/proc/self/ns/pid").st_ino
    b.bind("\0cuda-uvmfd-%d-%d\0" % (ns, os.getpid()))
    b.listen()
if "deleted" in sys.argv:
    f = open(os.path.join(sys.argv[1], "deleted"), "w+")
    os.unlink(f.name)
with open(os.path.join(sys.argv[1], "pid"), "w") as p:
    p.write(str(os.getpid()))
while True:
    time.sleep(1)
`

// What there is only once the first copy has, and the others fail with what to do; nobody loses what he has.
func TestCopiesCollide(t *testing.T) {
	b := newBench(t)
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	for _, c := range []struct {
		has, word string
		code      int
	}{
		{"port", "tcp 127.0.0.1:", cli.Partial}, {"socket", "/sock", cli.Partial}, {"deleted", "", 0},
		{"driver", "", 0},
	} {
		dir := t.TempDir()
		must(t, exec.Command("setsid", "--fork", "python3", "-c", listening, dir, c.has).Run())
		pid := 0
		must(t, poll(func() bool {
			text, _ := os.ReadFile(filepath.Join(dir, "pid"))
			pid, _ = strconv.Atoi(string(text))
			return pid != 0
		}))
		b.run("dump", b.store, c.has, "-t", strconv.Itoa(pid), "--leave-running")
		if c.word != "" {
			// It still has what the copy would need.
			_, err := b.try("restore", "--own-pids", b.store, c.has)
			if cli.Code(err) != cli.Failed || len(inits()) > 0 {
				t.Errorf("%s: restored beside its owner: %v", c.has, err)
			}
		}
		if c.has == "socket" {
			if _, err := os.Stat(filepath.Join(dir, "sock")); err != nil {
				t.Errorf("the owner has lost its socket: %v", err)
			}
		}
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		must(t, poll(func() bool {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			return procfs.Numbers(pid) == nil
		}))
		out, err := b.try("restore", "--copies", "3", "--wait", b.store, c.has)
		if cli.Code(err) != c.code {
			t.Errorf("%s: %v", c.has, err)
		}
		whole := 3
		if c.code != 0 {
			whole = 1
			for _, want := range []string{"copy 2: ", "copy 3: ", "the first copy has its sockets", c.word, "hint: "} {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: nothing of %q: %v", c.has, want, err)
				}
			}
		}
		if n := strings.Count(out, ": restored "); n != whole && err == nil || len(inits()) != whole {
			t.Errorf("%s: %d copies run, %d wanted:\n%s", c.has, len(inits()), whole, out)
		}
		endInits(t)
		must(t, quietly(b))
	}
	for _, bad := range [][]string{{"0"}, {"-1"}, {"1025"}, {"2", "--", "--shell-job"},
		{"2", "--", "-W", t.TempDir()}} {
		if _, err := b.try(append([]string{"restore", b.store, "port", "--copies"}, bad...)...); cli.Code(
			err,
		) != cli.Usage {
			t.Errorf("--copies %v: %v", bad, err)
		}
	}
}
