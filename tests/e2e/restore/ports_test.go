package restore

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// portServer listens at the addresses given, on one port that it writes to the file given first, and closes each
// connection first. "twice" has it listen twice at each by SO_REUSEPORT, "fork" has a child of it listen there, too.
const portServer = `
import os, select, socket, sys
def listener(addr, port, shared):
    s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET)
    if shared:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ":" in addr:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, "only" in sys.argv)
    s.bind((addr, port))
    s.listen(8)
    return s
addrs = [a for a in sys.argv[2:] if a not in ("only", "twice", "fork")]
shared = "twice" in sys.argv or "fork" in sys.argv
port, all = 0, []
for a in addrs:
    for _ in range(2 if "twice" in sys.argv else 1):
        all.append(listener(a, port, shared))
        port = all[0].getsockname()[1]
if "fork" in sys.argv and os.fork() == 0:
    old, all = all, [listener(a, port, True) for a in addrs]
    for s in old:
        s.close()
with open("%s.%d" % (sys.argv[1], os.getpid()), "w") as f:
    f.write(str(port))
os.rename(f.name, sys.argv[1] + (".child" if os.getpid() != os.getsid(0) else ""))
while True:
    for s in select.select(all, [], [])[0]:
        c = s.accept()[0]
        c.sendall(b"%d" % len(all))
        c.close()
`

// listener is a process that listens.
type listener struct {
	b    *bench
	cmd  *exec.Cmd
	pid  int
	port string
}

// listen starts one; see portServer.
func (b *bench) listen(args ...string) *listener {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), "port")
	cmd := exec.Command("python3", append([]string{"-c", portServer, file}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(b.t, cmd.Start())
	l := &listener{b: b, cmd: cmd, pid: cmd.Process.Pid}
	b.t.Cleanup(l.end)
	for _, name := range []string{file, file + ".child"}[:1+strings.Count(strings.Join(args, " "), "fork")] {
		var text []byte
		for end := time.Now().Add(limit); len(text) == 0; wait(1) {
			if text, _ = os.ReadFile(name); len(text) == 0 && time.Now().After(end) {
				b.t.Fatal("the process does not listen")
			}
		}
		l.port = string(text)
	}
	return l
}

// end ends the process, and waits until its pid is free.
func (l *listener) end() {
	if l.pid == 0 {
		return
	}
	syscall.Kill(-l.pid, syscall.SIGKILL)
	l.cmd.Wait()
	l.reaped()
	l.pid = 0
}

// reaped waits until nothing has the pid, or is in the group.
func (l *listener) reaped() {
	for end := time.Now().Add(limit); syscall.Kill(-l.pid, 0) == nil && time.Now().Before(end); wait(1) {
		syscall.Wait4(-l.pid, nil, syscall.WNOHANG, nil) // this test may have become the parent of a restored one
	}
}

// dump dumps the process, which ends by that.
func (l *listener) dump(name string) {
	l.b.t.Helper()
	l.b.run("dump", l.b.store, name, "-t", strconv.Itoa(l.pid))
	l.cmd.Wait()
	l.reaped()
}

// serves has a connection served by the process, which has so many listeners, until the process has closed it.
func (l *listener) serves(addr string, listeners int) {
	l.b.t.Helper()
	c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, l.port), limit)
	must(l.b.t, err)
	defer c.Close()
	must(l.b.t, c.SetDeadline(time.Now().Add(limit)))
	got, err := io.ReadAll(c)
	must(l.b.t, err)
	if string(got) != strconv.Itoa(listeners) {
		l.b.t.Errorf("%s is served %q", addr, got)
	}
}

// timeWait counts connections in TIME_WAIT whose local port it is, listens counts sockets that listen there.
func timeWait(t *testing.T, port string) int { return inState(t, port, "06") }

func listens(t *testing.T, port string) int { return inState(t, port, "0A") }

// inState counts the sockets of a port in a state, as /proc/net/tcp names it.
func inState(t *testing.T, port, state string) (n int) {
	t.Helper()
	number, err := strconv.Atoi(port)
	must(t, err)
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/net/" + name)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) && f[3] == state {
				n++
			}
		}
	}
	return n
}

// A process that listens is restored although a connection that it had closed first keeps its port in TIME_WAIT, over
// which criu by itself fails. A connection in TIME_WAIT on another port stays.
func TestPortInTimeWait(t *testing.T) {
	for name, c := range map[string]struct{ at, from []string }{
		"IPv4":         {[]string{"127.0.0.1"}, []string{"127.0.0.1"}},
		"IPv6":         {[]string{"::1"}, []string{"::1"}},
		"both, by one": {[]string{"::"}, []string{"127.0.0.1", "::1"}},
		"both, by two": {[]string{"0.0.0.0", "::", "only"}, []string{"127.0.0.1", "::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			other := b.listen("127.0.0.1")
			other.serves("127.0.0.1", 1)
			x := b.listen(c.at...)
			listeners := len(c.at)
			if c.at[listeners-1] == "only" {
				listeners--
			}
			for _, from := range c.from {
				x.serves(from, listeners)
			}
			x.dump("server")
			if n := timeWait(t, x.port); n != len(c.from) {
				t.Fatalf("%d connections are in TIME_WAIT, not %d", n, len(c.from))
			}
			mnt, work := t.TempDir(), t.TempDir()
			b.run("mount", b.store, mnt)
			t.Cleanup(func() { b.try("umount", "--force", mnt) })
			err := criu(t, work, "restore", "-D", filepath.Join(mnt, ".checkpoints", "server"), "-d")
			if err == nil || !strings.Contains(err.Error(), "Address already in use") {
				t.Fatalf("criu restores over the connection: %v", err)
			}
			b.run("umount", mnt)
			x.reaped() // which criu has begun to make
			b.run("restore", b.store, "server", "--wait")
			for _, from := range c.from {
				x.serves(from, listeners)
			}
			if n := timeWait(t, other.port); n != 1 {
				t.Errorf("%d connections are in TIME_WAIT on a port that is none of the checkpoint's", n)
			}
		})
	}
}

// Two listeners on one port (SO_REUSEPORT), of one process or of two, are no obstacle to check, and come back, also
// over a connection in TIME_WAIT.
func TestPortShared(t *testing.T) {
	for name, c := range map[string]struct {
		args      []string
		listeners int // of a process
	}{
		"IPv4":          {[]string{"twice", "127.0.0.1"}, 2},
		"IPv6":          {[]string{"twice", "::1"}, 2},
		"two processes": {[]string{"fork", "127.0.0.1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			x := b.listen(c.args...)
			at := c.args[1]
			x.serves(at, c.listeners)
			out := b.run("check", "--pid", strconv.Itoa(x.pid))
			if !strings.Contains(out, "no known problem prevents a dump") {
				t.Error(out)
			}
			x.dump("server")
			b.run("restore", b.store, "server", "--wait")
			if n := listens(t, x.port); n != 2 {
				t.Errorf("%d sockets listen, not 2", n)
			}
			for range 8 { // by either
				x.serves(at, c.listeners)
			}
		})
	}
}

// A process that has the port is named, with what to do, and goes on; connections of its port are left alone.
func TestPortTaken(t *testing.T) {
	b := newBench(t)
	x := b.listen("127.0.0.1")
	x.serves("127.0.0.1", 1)
	b.run("dump", b.store, "server", "-t", strconv.Itoa(x.pid), "--leave-running")
	before := timeWait(t, x.port)
	_, err := b.try("restore", b.store, "server", "--own-pids")
	if err == nil {
		t.Fatal("two processes have the port")
	}
	for _, want := range []string{"port " + x.port, fmt.Sprintf("process %d (python3)", x.pid), "end that process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %q: %v", want, err)
		}
	}
	if n := timeWait(t, x.port); n < before {
		t.Errorf("%d of %d connections are left", n, before)
	}
	x.serves("127.0.0.1", 1)
}
