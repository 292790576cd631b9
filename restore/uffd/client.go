package uffd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

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
