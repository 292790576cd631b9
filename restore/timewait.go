package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
)

// A side of a TCP connection that closed it first keeps its port for a minute, in the state TIME_WAIT. CRIU cannot bind
// a listening socket to that port then unless the former one had SO_REUSEADDR, although it sets that option on its own:
// the kernel asks both (inet_csk_bind_conflict).

// waitsAtMost is how long a port in TIME_WAIT is waited for: the kernel's 60 s (TCP_TIMEWAIT_LEN) and a little more.
const waitsAtMost = 65 * time.Second

// PortTaken tells whether CRIU failed because a port is in use.
func PortTaken(err error) bool {
	var f *diagnosis.Failure
	return errors.As(err, &f) && f.Says("Address already in use") &&
		(f.Says("Can't bind inet socket") || f.Says("Can't listen on a socket"))
}

// FreePorts makes the ports free on which processes of the checkpoint listen, after CRIU has failed because one was in
// use. It ends connections in TIME_WAIT, and nothing else. Where the kernel does not end them, it calls tell and waits
// until they have ended by themselves. It returns one sentence that says what held the ports, or "" where nothing that
// can be ended held them. Where a process has one of the ports, the error is a *diagnosis.Failure. args tells in which
// network namespace CRIU restores.
func FreePorts(ctx context.Context, images fs.FS, args Args, tell func(string)) (string, error) {
	netns, fresh := args.network(images)
	if fresh {
		return "", nil
	}
	listeners, err := criuimg.LoadListeners(images)
	if err != nil || len(listeners) == 0 {
		return "", err
	}
	d, err := sockDiagIn(netns)
	if err != nil {
		return "", fmt.Errorf("ask who has the ports: %w", err)
	}
	defer d.close()
	return freePorts(ctx, d, listeners, tell)
}

// network gives the network namespace that CRIU restores in, as a file; "" for this process's. fresh: it makes a new
// one, in which all ports are free.
func (a *Args) network(images fs.FS) (file string, fresh bool) {
	for _, v := range a.Values("join-ns") {
		if rest, ok := strings.CutPrefix(v, "net:"); ok {
			if _, err := strconv.Atoi(rest); err == nil {
				return "/proc/" + rest + "/ns/net", false
			}
			return rest, false
		}
	}
	for _, v := range a.Values("external") {
		_, key, _ := strings.Cut(v, ":")
		for _, in := range a.inherit {
			if strings.HasPrefix(v, "net[") && in.key == key {
				return fmt.Sprintf("/proc/self/fd/%d", in.fd), false
			}
		}
	}
	own, _ := fs.Glob(images, "netns-*.img") // CRIU dumps a network namespace that is not its own
	return "", len(own) > 0
}

// sockDiagIn opens a sockDiag in a network namespace, "" for this process's.
func sockDiagIn(netns string) (d *sockDiag, err error) {
	if netns == "" {
		return openSockDiag()
	}
	f, err := os.Open(netns)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with this goroutine, and nothing else runs in that namespace
		if err = os.NewSyscallError("setns", unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)); err == nil {
			d, err = openSockDiag()
		}
	}()
	<-done
	return d, err
}

// diag is a sockDiag, or one that a test has made.
type diag interface {
	sockets(port uint16) ([]tcpSocket, error)
	destroy(tcpSocket) error
}

// freePorts is FreePorts with one sockDiag.
func freePorts(ctx context.Context, d diag, need []criuimg.Listener, tell func(string)) (string, error) {
	waiting, live, err := holders(d, need)
	switch {
	case err != nil:
		return "", err
	case len(live) > 0 && (live[0].state == tcpListens || len(waiting) == 0):
		return "", held(live[0]) // nothing is ended in vain
	case len(waiting) == 0:
		return "", nil
	}
	what := fmt.Sprintf("port %d was held by a connection that its processes had closed (TIME_WAIT)",
		waiting[0].at.Port())
	for _, s := range waiting {
		err := d.destroy(s)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
			tell(fmt.Sprintf("port %d is held for up to a minute by a connection that its processes have closed "+
				"(TIME_WAIT); ending it takes root and a kernel with CONFIG_INET_DIAG_DESTROY (%v): waiting for it",
				s.at.Port(), err))
			return what, gone(ctx, d, need)
		}
		if err != nil {
			return "", fmt.Errorf("end a connection in TIME_WAIT on port %d: %w", s.at.Port(), err)
		}
	}
	return what, nil
}

// gone waits until no connection in TIME_WAIT is in the way.
func gone(ctx context.Context, d diag, need []criuimg.Listener) error {
	for end := time.Now().Add(waitsAtMost); ; {
		waiting, _, err := holders(d, need)
		if err != nil || len(waiting) == 0 {
			return err
		}
		if time.Now().After(end) {
			return &diagnosis.Failure{
				Cause: fmt.Sprintf("port %d, on which the processes listen, is still held by a connection in "+
					"TIME_WAIT after %v", waiting[0].at.Port(), waitsAtMost),
				Hint: "restore when it has ended: ss -tan state time-wait shows it"}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// holders gives the sockets that keep others from listening there: those in TIME_WAIT, and those that live, the
// listening ones first.
func holders(d diag, need []criuimg.Listener) (waiting, live []tcpSocket, err error) {
	asked := map[uint16][]tcpSocket{}
	for _, l := range need {
		if _, ok := asked[l.At.Port()]; !ok {
			if asked[l.At.Port()], err = d.sockets(l.At.Port()); err != nil {
				return nil, nil, err
			}
		}
	}
	seen := map[[diagIDSize]byte]bool{}
	for _, l := range need {
		for _, s := range asked[l.At.Port()] {
			switch {
			case seen[s.id] || !meet(l, s.at.Addr()):
				continue
			case s.state == tcpTimeWait:
				waiting = append(waiting, s)
			case s.state == tcpListens:
				live = append([]tcpSocket{s}, live...)
			default:
				live = append(live, s)
			}
			seen[s.id] = true
		}
	}
	return waiting, live, nil
}

// meet tells whether a socket at another's address is in the way of a listener on the same port.
func meet(l criuimg.Listener, other netip.Addr) bool {
	at := l.At.Addr().Unmap()
	switch {
	case at == other:
		return true
	case at.IsUnspecified():
		return at.Is6() && !l.V6Only || at.Is4() == other.Is4() || other == netip.IPv6Unspecified()
	case other.IsUnspecified():
		return other.Is6() || at.Is4() // one at :: takes IPv4, too, as a rule
	}
	return false
}

// held says who has a port.
func held(s tcpSocket) error {
	const otherwise = ", or restore in another network namespace: ip netns exec NAME gpucr-fs restore"
	what := fmt.Sprintf("port %d, on which the processes listen, is taken by ", s.at.Port())
	who := userOf(s.inode)
	switch {
	case who != "" && s.state == tcpListens:
		return &diagnosis.Failure{Cause: what + fmt.Sprintf("%s, which listens at %v", who, s.at),
			Hint: "end that process" + otherwise}
	case who != "":
		return &diagnosis.Failure{Cause: what + fmt.Sprintf("%s, which has a connection from there in state %s", who,
			tcpStates[s.state]), Hint: "end that process" + otherwise}
	case s.state == tcpListens:
		return &diagnosis.Failure{Cause: what + fmt.Sprintf("a socket at %v of no process that can be seen here", s.at),
			Hint: "end what listens there (ss -ltnp), which may be in another pid namespace" + otherwise}
	}
	return &diagnosis.Failure{Cause: what + fmt.Sprintf("a connection in state %s that no process has open any more",
		tcpStates[s.state]), Hint: "restore when it has ended, within minutes: ss -tan shows it"}
}

// userOf names a process that has a socket open, "" if none is found.
func userOf(inode uint64) string {
	if inode == 0 {
		return ""
	}
	want := fmt.Sprintf("socket:[%d]", inode)
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	for _, path := range fds {
		if to, err := os.Readlink(path); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			return fmt.Sprintf("process %d%s", pid, comm(pid))
		}
	}
	return ""
}
