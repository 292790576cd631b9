package uffd

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// ErrGuardian is wrapped by Serve's error when the guardian was killed. The tasks have then been killed as well. Begin
// wraps it when the guardian did not start.
var ErrGuardian = errors.New("the guardian is gone")

// GuardianOptions say how to serve one restore with a guardian.
type GuardianOptions struct {
	// Dir is CRIU's work directory, where the socket goes.
	Dir  string
	Plan *Plan
	// Command has this program call GuardianMain, see Spawn.
	Command []string
	// Successor has this program call Takeover and provide in this
	// one's place. Without it the tasks are killed when this process ends
	// before they have all their memory.
	Successor []string
	// RunBytes and Memory are those of prefetch.Options: memory that is
	// shared with the guardian takes the place of the queue's own.
	// Default 2 MiB and 32 MiB.
	RunBytes, Memory int64
	Logger           *slog.Logger
}

// Validate fills in defaults and checks the options.
func (o *GuardianOptions) Validate() error {
	if o.RunBytes == 0 {
		o.RunBytes = 2 << 20
	}
	if o.Memory == 0 {
		o.Memory = 32 << 20
	}
	switch {
	case o.RunBytes < prefetch.UnitBytes || o.RunBytes%prefetch.UnitBytes != 0:
		return fmt.Errorf("uffd: run of %d bytes is not a multiple of %d", o.RunBytes, prefetch.UnitBytes)
	case o.Memory < 2*o.RunBytes:
		return fmt.Errorf("uffd: memory of %d bytes is less than two runs of %d", o.Memory, o.RunBytes)
	}
	inner := Options{Dir: o.Dir, Plan: o.Plan, Logger: o.Logger}
	err := inner.Validate()
	o.Dir = inner.Dir
	return err
}

// Client is the provider's end of a guardian. It is the prefetch.Sink and the
// prefetch.Buffers of the queue that provides.
type Client struct {
	plan     *Plan
	runBytes int64
	log      *slog.Logger
	wire     *wire
	slots    *slots

	mu     sync.Mutex
	ids    uint64
	acks   map[uint64]chan struct{}
	closed bool
	report Report
	held   heldFDs
	sock   *socket // that Listen made, until CRIU has come: its path is left when the guardian is killed before
}

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

// connect waits for the guardian to accept this provider.
func connect(w *wire, plan *Plan, log *slog.Logger) (*Client, error) {
	c := &Client{plan: plan, log: log, wire: w, acks: make(map[uint64]chan struct{}), held: newHeldFDs(log)}
	for {
		p, err := w.receive()
		if err != nil {
			w.close()
			return nil, fmt.Errorf("%w: it did not start: %w", ErrGuardian, err)
		}
		switch p.kind {
		case kindHello:
			c.runBytes = int64(p.id)
			if len(p.fds) != 1 {
				err = fmt.Errorf("the guardian sent %d descriptors for its memory", len(p.fds))
			} else {
				c.slots, err = mapSlots(p.fds[0], c.runBytes)
			}
			closeAll(p.fds)
			if err != nil {
				w.close()
				return nil, err
			}
			c.held.setKeeper(string(p.tail))
			return c, nil
		case kindDone:
			w.close()
			var o outcome
			if err := json.Unmarshal(p.tail, &o); err != nil {
				return nil, err
			}
			return nil, errors.New(o.Err)
		case kindLog:
			c.logLine(&p)
		}
		closeAll(p.fds)
	}
}

// Plan returns the plan being followed.
func (c *Client) Plan() *Plan { return c.plan }

// RunBytes is what the queue's RunBytes has to be, Memory what its Memory may.
func (c *Client) RunBytes() int64 { return c.runBytes }
func (c *Client) Memory() int64   { return c.runBytes * int64(c.slots.count) }

// Report returns what the guardian's server has done, as far as it has told.
func (c *Client) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report
}

// Serve provides until all memory is resident, nobody needs it any more, or an error occurs. When ctx ends a successor
// takes over; if CRIU has not connected yet, the restore ends instead.
func (c *Client) Serve(ctx context.Context, q Supplier) error {
	ctx, cancel := context.WithCancel(ctx)
	var drains sync.WaitGroup
	defer drains.Wait()
	defer cancel()
	defer c.letGo(false)
	defer context.AfterFunc(ctx, func() {
		c.wire.send(&packet{kind: kindStop})
		// The guardian answers when it ends; when it goes on without us,
		// leaving is for us to do.
		time.AfterFunc(stopTimeout, func() { c.wire.c.CloseRead() })
	})()
	for {
		p, err := c.wire.receive()
		if err != nil {
			c.release()
			if ctx.Err() != nil {
				c.held.drop()
				return ctx.Err()
			}
			if prefetch.IsLack(err) || errors.Is(err, net.ErrClosed) {
				// It is this process that lacks something. The guardian finds a successor, or ends the tasks.
				c.wire.close()
				c.held.drop()
				return fmt.Errorf("cannot take from the guardian or send to it; "+
					"let this process have more descriptors (RLIMIT_NOFILE) or memory: %w", err)
			}
			c.held.end()
			return fmt.Errorf("%w: %w", ErrGuardian, err)
		}
		switch p.kind {
		case kindMemory, kindTask:
			c.letGo(true)
			c.held.add(&p)
			continue
		case kindCRIU:
			c.held.watch(&p)
			continue
		case kindLeft:
			c.held.remove(p.id)
		case kindDemand:
			q.Demand(p.r, p.flag)
		case kindSweep:
			q.Sweep(p.ranges)
		case kindRefetch:
			q.Refetch(p.ranges)
		case kindDrain:
			drains.Go(func() {
				if q.Drain(ctx) == nil {
					c.wire.send(&packet{kind: kindDrained, id: p.id})
				}
			})
		case kindAck:
			c.mu.Lock()
			ch := c.acks[p.id]
			delete(c.acks, p.id)
			c.mu.Unlock()
			if ch != nil {
				close(ch)
			}
		case kindLog:
			c.logLine(&p)
		case kindReport, kindDone:
			var o outcome
			if err := json.Unmarshal(p.tail, &o); err != nil {
				c.log.Warn("cannot read the guardian's report", "err", err)
			}
			c.mu.Lock()
			c.report = o.Report
			c.mu.Unlock()
			if p.kind == kindDone {
				c.release()
				c.held.drop()
				return o.err(ctx)
			}
		}
		closeAll(p.fds)
	}
}

// Abandon gives the restore up: the guardian ends all tasks, and Serve returns.
func (c *Client) Abandon() { c.wire.send(&packet{kind: kindAbandon}) }

// Retire ends the guardian unless CRIU is there: the process that would have
// started CRIU is gone.
func (c *Client) Retire() { c.wire.send(&packet{kind: kindStop}) }

// stopTimeout is how long the guardian has to answer a stop.
const stopTimeout = 200 * time.Millisecond

func (o *outcome) err(ctx context.Context) error {
	switch {
	case o.Err == "":
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case o.Restore:
		return fmt.Errorf("%w: %s", ErrRestore, strings.TrimPrefix(o.Err, ErrRestore.Error()+": "))
	}
	return errors.New(o.Err)
}

func (c *Client) logLine(p *packet) {
	line := strings.TrimSpace(string(p.tail))
	level := slog.LevelInfo
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelWarn, slog.LevelError} {
		if strings.Contains(line, " level="+l.String()+" ") {
			level = l
		}
	}
	if _, rest, ok := strings.Cut(line, " msg="); ok {
		line = rest
	}
	c.log.Log(context.Background(), level, "guardian: "+line)
}

// release lets all deliveries return.
func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.slots.retire()
	for id, ch := range c.acks {
		close(ch)
		delete(c.acks, id)
	}
}

// Close ends the connection. The queue that delivers must have been closed.
func (c *Client) Close() error {
	c.release()
	c.letGo(false)
	c.wire.close()
	return c.slots.close()
}

// deliver sends a delivery and waits until the guardian is done with it.
func (c *Client) deliver(p *packet) {
	ch := make(chan struct{})
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.ids++
	p.id = c.ids
	c.acks[p.id] = ch
	c.mu.Unlock()
	if err := c.wire.send(p); err != nil {
		// Serve sees the end of the connection as well.
		c.mu.Lock()
		delete(c.acks, p.id)
		c.mu.Unlock()
		return
	}
	<-ch
}

// Take, Fail and AlreadyDelivered are prefetch.Sink.
func (c *Client) Take(parts []prefetch.Part) {
	for len(parts) > 0 {
		n := min(len(parts), maxRanges)
		p := packet{kind: kindTake, ranges: make([]prefetch.Range, n), pages: make([]uint32, n)}
		for i, x := range parts[:n] {
			p.ranges[i], p.pages[i] = x.Range, zeroPage
			if x.Data != nil {
				p.pages[i] = c.slots.page(x.Data)
			}
		}
		c.deliver(&p)
		parts = parts[n:]
	}
}

func (c *Client) Fail(r prefetch.Range, err error) {
	text := err.Error()
	c.deliver(&packet{kind: kindFail, r: r, tail: []byte(text[:min(len(text), 1000)])})
}

// AlreadyDelivered does not wait: it is called while demands are taken from the guardian.
func (c *Client) AlreadyDelivered(r prefetch.Range) { c.wire.send(&packet{kind: kindDelivered, r: r}) }

// Get and Put are prefetch.Buffers.
func (c *Client) Get() []byte  { return c.slots.Get() }
func (c *Client) Put(b []byte) { c.slots.Put(b) }
