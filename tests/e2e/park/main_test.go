package park

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

const timeout = 2 * time.Minute

var (
	programs = map[string]string{}
	command  cli.Program
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if at := os.Getenv(killAt); at != "" {
		return parker(at)
	}
	dir, err := os.MkdirTemp("", "park-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		for name, library := range map[string][]string{"raw": nil, "forbid": nil, "library": {"-luring"}} {
			programs[name] = filepath.Join(dir, name)
			args := append(
				[]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", programs[name],
					"src/" + name + ".c"},
				library...)
			if out, cerr := exec.Command("cc", args...).CombinedOutput(); cerr != nil {
				err = fmt.Errorf("%w: %s; apt-get install gcc libc6-dev liburing-dev", cerr, out)
			}
		}
	}
	var criu string
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err == nil {
		command, err = cli.Build(dir)
	}
	cli.CloseInheritedOnExec()
	if err == nil {
		// Restored processes become children of this one: pids have to be free for the next restore.
		err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	return m.Run()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a store and a program.
type rig struct {
	t             *testing.T
	store, socket string
	dir           string
	pid           int
}

// start runs a program in a session of its own until it answers.
func start(t *testing.T, program string, args ...string) *rig {
	t.Helper()
	r := &rig{t: t, store: filepath.Join(t.TempDir(), "store")}
	var err error
	r.dir, err = os.MkdirTemp("", "park-app-") // a socket's path has 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(r.dir) })
	r.socket = filepath.Join(r.dir, "s")
	log, err := os.Create(filepath.Join(r.dir, "log"))
	must(t, err)
	defer log.Close()
	cmd := exec.Command(programs[program], append([]string{r.socket, filepath.Join(r.dir, "file")}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	r.pid = cmd.Process.Pid
	must(t, cmd.Process.Release())
	t.Cleanup(func() {
		r.end()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the program's log: %s", text)
		}
	})
	r.say("go 3")
	r.ok("init", r.store)
	return r
}

// end kills the program, and waits until its pid is free and the store's daemon gone.
func (r *rig) end() {
	syscall.Kill(-r.pid, syscall.SIGKILL)
	r.gone()
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		if cli.DaemonEnded(r.store) {
			return
		}
		if time.Now().After(end) {
			r.t.Error("the store's daemon does not end")
			return
		}
	}
}

func (r *rig) gone() {
	r.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		for {
			if pid, err := syscall.Wait4(-r.pid, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if errors.Is(syscall.Kill(-r.pid, 0), syscall.ESRCH) {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("process %d does not end", r.pid)
		}
	}
}

// ask says a line to the program.
func (r *rig) ask(line string) (string, error) {
	c, err := net.DialTimeout("unix", r.socket, timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	fmt.Fprintln(c, line)
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// say says a line to the program, until it listens, and gives the number that it answers.
func (r *rig) say(line string) int {
	r.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		answer, err := r.ask(line)
		if number, ok := strings.CutPrefix(answer, "ok "); ok {
			n, _ := strconv.Atoi(number)
			return n
		}
		ended := errors.Is(syscall.Kill(r.pid, 0), syscall.ESRCH)
		if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid)); strings.Contains(string(text), ") Z ") {
			ended = true
		}
		if ended || time.Now().After(end) || err == nil {
			r.t.Fatalf("%s: the program answers %q, %v", line, answer, err)
		}
	}
}

// wants checks a line's answer.
func (r *rig) wants(line string, want int) {
	r.t.Helper()
	if got := r.say(line); got != want {
		r.t.Fatalf("%s: %d, want %d", line, got, want)
	}
}

func (r *rig) ok(args ...string) string {
	r.t.Helper()
	out, err := command.RunIn(timeout, args...)
	if err != nil {
		r.t.Fatalf("%v: %v: %s", args, err, out)
	}
	return out
}

// fails runs the command, which must fail and say each of the words.
func (r *rig) fails(args []string, words ...string) {
	r.t.Helper()
	out, err := command.RunIn(timeout, args...)
	if err == nil {
		r.t.Fatalf("%v succeeds: %s", args, out)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("%v says %v, and nothing of %q", args, err, w)
		}
	}
}

func (r *rig) name() string { return strconv.Itoa(r.pid) }

// rings lists the descriptors and mappings of rings that the program has.
func (r *rig) rings() (list []string) {
	r.t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.pid))
	must(r.t, err)
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && strings.Contains(to, "io_uring") {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", r.pid, filepath.Base(name)))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it has just gone
			}
			must(r.t, err)
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "flags:") || strings.HasPrefix(line, "Sq") ||
					strings.HasPrefix(line, "Cq") ||
					strings.HasPrefix(line, "Cached") {
					list = append(list, filepath.Base(name)+" "+strings.TrimSpace(line))
				}
			}
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", r.pid))
	must(r.t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "io_uring") {
			f := strings.Fields(line)
			list = append(list, strings.Join(f[:3], " "))
		}
	}
	return list
}

// prepare makes a command of gpucr-fs that is not waited for.
func prepare(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, string(command), args...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
