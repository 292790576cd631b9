package uffd

import (
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// How a guardian's process is started, and how another provider takes over from the first.

// Spawned is a guardian's process that does not know yet what to guard.
type Spawned struct {
	wire     *wire
	setup    *os.File
	sock     *socket // that Listen has handed to it; nil without
	notApart error   // why it is in this process's cgroup
}

// sameCgroup bounds the lines about that to one.
var sameCgroup sync.Once

// again starts this very program, even when another has taken its path: both
// ends have to agree on what they say. The command's first word is only its name.
func again(command []string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: command}
}

// Spawn starts a guardian's process by command, this program with arguments by
// which it calls GuardianMain. Starting takes as long as reading a checkpoint's
// page maps.
func Spawn(command []string) (*Spawned, error) {
	if len(command) == 0 {
		return nil, errors.New("uffd: guardian options lack the command")
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	w, err := newWire(ours)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("gpucr-fs-plan", unix.MFD_CLOEXEC)
	if err != nil {
		w.close()
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	g := &Spawned{wire: w, setup: os.NewFile(uintptr(fd), "setup")}
	cmd, apart, err := startIn(cgroupGuardians, func() *exec.Cmd {
		cmd := again(command)
		cmd.ExtraFiles = []*os.File{theirs, g.setup}
		cmd.Stderr = os.Stderr
		// Its own session: what ends this process's terminal or group does not
		// end it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd
	})
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("start the guardian: %w", err)
	}
	g.notApart = apart
	go func() {
		cmd.Wait() // reaps it; its end shows on the connection
		removeCgroups()
	}()
	return g, nil
}

// Close ends a guardian that was not begun. If CRIU is connected to it, CRIU fails.
func (g *Spawned) Close() {
	if g.sock != nil {
		g.sock.close() // the path is gone when this returns
	}
	g.wire.close()
	g.setup.Close()
}

// Listen makes the socket in dir, CRIU's work directory, before it is known what there is to guard. CRIU may be started
// then, and connects to the guardian. But it must be kept from letting its tasks run until Begin has returned: what a
// guardian that does not begin would have brought them is zero then. Wraps ErrGuardian where the guardian is gone.
func (g *Spawned) Listen(dir string) error {
	sock, err := listen(dir)
	if err != nil {
		return err
	}
	if err := sock.hand(g.wire); err != nil {
		sock.close()
		return err
	}
	g.sock = sock
	return nil
}

// Begin tells the guardian what to do. When it returns, criu restore
// --lazy-pages may be started. The command of the options is not used, and g
// neither afterwards.
func (g *Spawned) Begin(o GuardianOptions) (*Client, error) {
	c, err := g.begin(o)
	switch {
	case g.sock == nil:
	case err != nil:
		g.sock.close()
	default:
		c.sock = g.sock
	}
	return c, err
}

// letGo lets go of the socket that Listen made. If CRIU has not come it removes the path, which may be left. Otherwise
// the guardian did so, and the next restore's socket may have got the same inode since.
func (c *Client) letGo(came bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sock == nil:
		return
	case came:
		c.sock.dir.Close()
	default:
		c.sock.close()
	}
	c.sock = nil
}

func (g *Spawned) begin(o GuardianOptions) (*Client, error) {
	defer g.setup.Close()
	err := o.Validate()
	if err == nil {
		st := setup{Plan: o.Plan, Dir: o.Dir, Successor: o.Successor, RunBytes: o.RunBytes,
			Slots: int(o.Memory / o.RunBytes)}
		if g.sock != nil {
			st.Dir = ""
		}
		err = writeSetup(g.setup, &st)
	}
	if err == nil {
		if err = g.wire.send(&packet{kind: kindBegin}); err != nil {
			err = fmt.Errorf("%w: it did not start: %w", ErrGuardian, err)
		}
	}
	if err != nil {
		g.wire.close()
		return nil, err
	}
	if g.notApart != nil {
		sameCgroup.Do(func() {
			o.Logger.Warn("guardians stay in this process's cgroup: "+
				"if it is killed as a whole, restored processes outside of it would read zeros for what they lack; "+
				"a writable cgroup v2 would keep guardians apart", "err", g.notApart)
		})
	}
	return connect(g.wire, o.Plan, o.Logger)
}

// StartGuardian starts a guardian: it is Spawn and Begin.
func StartGuardian(o GuardianOptions) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g, err := Spawn(o.Command)
	if err != nil {
		return nil, err
	}
	return g.Begin(o)
}

// Takeover connects to the guardian that started this process in place of a
// provider that ended. The caller opens the files of Plan and serves.
func Takeover(log *slog.Logger) (*Client, error) {
	return TakeoverFrom(os.NewFile(fdWire, "guardian"), os.NewFile(fdSetup, "setup"), log)
}

// SuccessorFDs are the descriptors that a guardian starts a successor with, for
// one that passes them on to a process that calls TakeoverFrom.
func SuccessorFDs() (wire, setup int) { return fdWire, fdSetup }

// TakeoverFrom is Takeover with the successor's descriptors, which may come from
// another process. It closes them.
func TakeoverFrom(wire, setup *os.File, log *slog.Logger) (*Client, error) {
	defer setup.Close()
	st, err := readSetup(setup)
	if err != nil {
		wire.Close()
		return nil, err
	}
	w, err := newWire(wire)
	if err != nil {
		return nil, err
	}
	return connect(w, st.Plan, log)
}

// helloTimeout is how long a guardian may take to accept the successor that it has started.
const helloTimeout = time.Second

// Untaken reports whether nobody has taken over from the guardian at the other end of a successor's wire yet, so that
// it may be tried once more: its first packet is still there.
func Untaken(wire int) bool {
	head := make([]byte, 1)
	for late := time.Now().Add(helloTimeout); time.Now().Before(late); time.Sleep(lackPause) {
		n, _, err := unix.Recvfrom(wire, head, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == nil {
			return n > 0 && kind(head[0]) == kindHello
		}
		if !prefetch.IsLack(err) {
			return false
		}
	}
	return false
}

// writeSetup leaves the setup in a file, read from its start by offset.
func writeSetup(f *os.File, st *setup) error {
	if err := gob.NewEncoder(f).Encode(st); err != nil {
		return fmt.Errorf("write the guardian's setup: %w", err)
	}
	return nil
}
