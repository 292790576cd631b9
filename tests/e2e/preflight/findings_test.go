package preflight

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/preflight"
)

// finding is a process with an obstacle.
type finding struct {
	name    string
	subject []string // its arguments; ARG is a path of the test's own
	prepare func(t *testing.T, arg string) func(*exec.Cmd)
	after   func(t *testing.T, arg string, pid int) // when it is ready
	kind    string
	says    string   // part of the finding's line
	refuses string   // part of what criu says
	remedy  []string // options with which criu dumps it
	child   bool     // the finding is about a descendant
}

func TestFindings(t *testing.T) {
	listen := func(network string) func(*testing.T, string) func(*exec.Cmd) {
		return func(t *testing.T, arg string) func(*exec.Cmd) {
			if network == "unix" {
				l, err := net.Listen(network, arg)
				must(t, err)
				t.Cleanup(func() { l.Close() })
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						c.Write([]byte{1})
						t.Cleanup(func() { c.Close() })
					}
				}()
				return nil
			}
			c, err := net.ListenPacket(network, arg)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			return nil
		}
	}
	block := func(t *testing.T, arg string) func(*exec.Cmd) {
		must(t, syscall.Mknod(arg, syscall.S_IFBLK|0o600, blockDevice(t)))
		return nil
	}
	for _, f := range []finding{
		{name: "io_uring", subject: []string{"uring"}, kind: "io_uring",
			says: "UV_USE_IO_URING=0", refuses: "Unknown shit"},
		{name: "io_uring descriptor", subject: []string{"uring-fd"}, kind: "io_uring", says: "descriptor"},
		{name: "io_uring mapping", subject: []string{"uring-mapping"},
			kind: "io_uring", says: "mapping", refuses: "Unknown shit"},
		{name: "perf", subject: []string{"perf"}, kind: "anon-inode", says: "perf_event", refuses: "perf_event"},
		{name: "userfaultfd", subject: []string{"userfaultfd"}, kind: "anon-inode",
			says: "userfaultfd", refuses: "userfaultfd"},
		{name: "device", subject: []string{"device", "/dev/fuse"}, kind: "device",
			says: "/dev/fuse", refuses: "Can't dump file"},
		{name: "device mapping", subject: []string{"device-mapping", "ARG"},
			prepare: block, kind: "device-mapping", refuses: "non-regular mapping"},
		{name: "block device", subject: []string{"device", "ARG"}, prepare: block,
			kind: "block-device", refuses: "Can't dump file"},
		{name: "pidfd outside", subject: []string{"pidfd-outside"}, kind: "pidfd",
			refuses: "not a part of process tree"},
		{name: "pidfd of a thread", subject: []string{"pidfd-thread"}, kind: "pidfd", refuses: "PIDFD_THREAD"},
		{name: "tcp", subject: []string{"tcp"}, kind: "tcp-established",
			says: "127.0.0.1 port", refuses: "tcp-established", remedy: []string{"--tcp-established"}},
		{name: "tcp backlog", subject: []string{"tcp-backlog"}, kind: "tcp-backlog",
			refuses: "In-flight connection", remedy: []string{"--skip-in-flight"}},
		{name: "mptcp", subject: []string{"mptcp"}, kind: "mptcp", says: "GODEBUG=multipathtcp=0",
			refuses: "Unsupported proto"},
		{name: "vsock", subject: []string{"vsock"}, kind: "socket-family", says: "VSOCK", refuses: "Unknown socket"},
		{name: "unix stream", subject: []string{"unix-stream", "ARG"},
			prepare: listen("unix"), kind: "unix-peer", refuses: "External socket"},
		{name: "unix datagram", subject: []string{"unix-dgram", "ARG"}, prepare: listen("unixgram"),
			kind: "unix-peer", refuses: "External socket", remedy: []string{"--ext-unix-sk"}},
		{name: "ghost", subject: []string{"ghost", "ARG"}, kind: "unlinked-file",
			says: "of 2048 KiB", refuses: "ghost file", remedy: []string{"--ghost-limit=4M"}},
		{name: "ghost mapping", subject: []string{"ghost-mapping", "ARG"},
			kind: "unlinked-file", refuses: "ghost file", remedy: []string{"--ghost-limit=4M"}},
		{name: "link", subject: []string{"linked", "ARG"}, kind: "unlinked-name",
			refuses: "link-remap", remedy: []string{"--link-remap"}},
		{name: "flock", subject: []string{"flock", "ARG"}, kind: "file-lock",
			refuses: "file locks", remedy: []string{"--file-locks"}},
		{name: "posix lock", subject: []string{"posix-lock", "ARG"}, kind: "file-lock",
			refuses: "file locks", remedy: []string{"--file-locks"}},
		{name: "sysv", subject: []string{"sysv"}, kind: "sysv-shm", refuses: "SysVIPC"},
		{name: "secret", subject: []string{"secret"}, kind: "secret-memory"},
		{name: "traced", subject: []string{"traced"}, kind: "traced", says: "subject", refuses: "Unable to detach"},
		{name: "first thread ended", subject: []string{"half-dead"}, kind: "first-thread-ended",
			after: func(t *testing.T, _ string, pid int) {
				until(t, func() bool {
					text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
					return err == nil && strings.Contains(string(text), ") Z ")
				})
			}},
		{name: "uninterruptible", subject: []string{"vfork"}, kind: "uninterruptible"},
		{name: "no session", subject: []string{"idle"}, kind: "shell-job",
			refuses: "not a session leader", remedy: []string{"--shell-job"},
			prepare: func(*testing.T, string) func(*exec.Cmd) {
				return func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
			}},
		{name: "nested", subject: []string{"nested-ipc"}, kind: "nested-namespace",
			says: "ipc", refuses: "nested", child: true},
		{name: "lazily unmounted", subject: []string{"lazy-unmounted", "ARG"},
			kind: "unreachable-mount", refuses: "Can't lookup mount",
			prepare: func(t *testing.T, arg string) func(*exec.Cmd) {
				must(t, os.Mkdir(arg, 0o700))
				must(t, syscall.Mount("tmpfs", arg, "tmpfs", 0, ""))
				t.Cleanup(func() { syscall.Unmount(arg, syscall.MNT_DETACH) })
				return nil
			},
			after: func(t *testing.T, arg string, _ int) { must(t, syscall.Unmount(arg, syscall.MNT_DETACH)) }},
		{name: "terminal", subject: []string{"terminal", "ARG"}, kind: "terminal",
			says: "/dev/pts/", refuses: "without correspond", remedy: []string{"--shell-job"},
			prepare: func(t *testing.T, arg string) func(*exec.Cmd) {
				must(t, os.Symlink(terminal(t), arg))
				return nil
			}},
		{name: "file system", subject: []string{"idle"}, kind: "file-system", says: "ramfs", refuses: "unsupported",
			prepare: func(t *testing.T, arg string) func(*exec.Cmd) {
				must(t, os.Mkdir(arg, 0o700))
				return func(c *exec.Cmd) {
					c.Path = "/usr/bin/unshare"
					c.Args = append([]string{"unshare", "--mount", "sh",
						"-c", `mount -t ramfs none "$0" && exec "$@"`, arg}, c.Args...)
				}
			}},
		{name: "pid namespace", subject: []string{"idle"}, kind: "nested-namespace",
			says: "pid", refuses: "nested", child: true,
			prepare: func(*testing.T, string) func(*exec.Cmd) {
				return func(c *exec.Cmd) {
					c.Path, c.Args = "/usr/bin/unshare",
						append([]string{"unshare", "--pid", "--fork", "--kill-child"}, c.Args...)
				}
			}},
	} {
		t.Run(f.name, func(t *testing.T) { f.test(t) })
	}
}

func (f finding) test(t *testing.T) {
	arg := filepath.Join(t.TempDir(), "a")
	var prepare func(*exec.Cmd)
	if f.prepare != nil {
		prepare = f.prepare(t, arg)
	}
	args := slices.Clone(f.subject)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "ARG", arg)
	}
	pid := start(t, prepare, subject, args...)
	if f.after != nil {
		f.after(t, arg, pid)
	}
	r := look(t, pid)
	if r.OK() {
		t.Errorf("the preflight passes it: %v", r.Findings)
	}
	found := false
	for _, x := range r.Blocking() {
		t.Log(x)
		if x.Kind != f.kind || !strings.Contains(x.String(), f.says) || (x.PID == pid) == f.child {
			t.Errorf("it has a finding %+v", x)
		}
		found = found || x.Kind == f.kind
	}
	if !found {
		t.Errorf("no finding %s", f.kind)
	}
	if err := dump(t, pid); err == nil {
		t.Error("criu dumps it")
	} else if !strings.Contains(err.Error(), f.refuses) {
		t.Errorf("criu says %v, and nothing of %q", err, f.refuses)
	}
	if f.remedy == nil {
		return
	}
	if r := look(t, pid, f.remedy...); !r.OK() {
		t.Errorf("with %v the preflight has %v", f.remedy, r.Findings)
	}
	if err := dump(t, pid, f.remedy...); err != nil {
		t.Errorf("with %v criu says %v", f.remedy, err)
	}
}

// terminal makes a terminal whose master is this test's, and gives the slave's path.
func terminal(t *testing.T) string {
	m, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	must(t, unix.IoctlSetPointerInt(int(m.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(m.Fd()), unix.TIOCGPTN)
	must(t, err)
	return fmt.Sprintf("/dev/pts/%d", n)
}

// A process of a pid namespace is dumped from the namespace's first process on.
func TestInsidePIDNamespace(t *testing.T) {
	outer := start(
		t, nil, "unshare", "--pid", "--fork", "--kill-child", "sh", "-c",
		fmt.Sprintf("setsid %s idle & wait", subject),
	)
	inner := childOf(childOf(outer))
	r := look(t, inner)
	if got := r.Blocking(); len(got) != 1 || got[0].Kind != "pid-namespace" ||
		!strings.Contains(got[0].Do, fmt.Sprint(childOf(outer))) {
		t.Errorf("it has %v", got)
	}
	if err := dump(t, inner); err == nil || !strings.Contains(err.Error(), "without the process init") {
		t.Errorf("criu says %v", err)
	}
}

// childOf gives the first child of a process.
func childOf(pid int) (child int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	fmt.Sscan(string(text), &child)
	return child
}

// A machine without iptables cannot hold a connection while criu dumps it.
func TestNetworkLock(t *testing.T) {
	pid := start(t, nil, subject, "tcp")
	t.Setenv("PATH", t.TempDir())
	for _, tc := range []struct {
		options []string
		ok      bool
	}{{[]string{"--tcp-established"}, false}, {[]string{"--tcp-established", "--network-lock=skip"}, true},
		{[]string{"--tcp-close"}, true}} {
		r := look(t, pid, tc.options...)
		if r.OK() != tc.ok || !tc.ok && r.Findings[0].Kind != "network-lock" {
			t.Errorf("%v: %v", tc.options, r.Findings)
		}
		if err := dump(t, pid, tc.options...); (err == nil) != tc.ok {
			t.Errorf("%v: criu says %v", tc.options, err)
		}
	}
}

// blockDevice gives the number of a block device that is there.
func blockDevice(t *testing.T) int {
	names, err := filepath.Glob("/sys/class/block/*/dev")
	must(t, err)
	if len(names) == 0 {
		t.Fatal("no block device; load the module loop")
	}
	text, err := os.ReadFile(names[0])
	must(t, err)
	var major, minor uint32
	_, err = fmt.Sscanf(string(text), "%d:%d", &major, &minor)
	must(t, err)
	return int(unix.Mkdev(major, minor))
}

// until waits for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
		}
	}
}

// What criu dumps passes: no false alarms.
func TestPasses(t *testing.T) {
	for name, args := range map[string][]string{
		"sleep":    {"sh", "-c", "echo ready; exec sleep 600"},
		"shell":    {"sh", "-c", "sleep 600 & sleep 600 | cat & echo ready; wait"},
		"harmless": {subject, "harmless", filepath.Join(t.TempDir(), "a")},
		"python": {"python3", "-c", "import http.server, threading\n" +
			"s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n" +
			"threading.Thread(target=s.serve_forever).start()\nprint('ready', flush=True)"},
		"workers": {"python3", "-c",
			"import multiprocessing as m, time\np = [m.Process(target=time.sleep, args=(600,)) for _ in range(3)]\n" +
				"[x.start() for x in p]\nprint('ready', flush=True)\ntime.sleep(600)"},
	} {
		t.Run(name, func(t *testing.T) {
			pid := start(t, nil, args[0], args[1:]...)
			r := look(t, pid)
			if len(r.Findings) > 0 {
				t.Errorf("the preflight has %v", r.Findings)
			}
			if err := dump(t, pid); err != nil {
				t.Errorf("criu says %v", err)
			}
		})
	}
}

func TestNobody(t *testing.T) {
	cmd := exec.Command("true")
	must(t, cmd.Run())
	for _, pid := range []int{cmd.Process.Pid, 1 << 30, -1} {
		if _, err := preflight.Look(t.Context(), preflight.Options{Root: pid}); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprint(pid)) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}
