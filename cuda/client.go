package cuda

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// closeTimeout bounds the wait for gpucr-cuda's end. It is long: the program may be moving VRAM back.
const closeTimeout = 5 * time.Minute

// Options say how to reach the driver.
type Options struct {
	// Program is the path of gpucr-cuda.
	Program string
	// Library is the path of libcuda.so.1, empty to let the loader find it.
	Library string
	Logger  *slog.Logger
}

// Client speaks with one gpucr-cuda. Its methods may be called at once from
// several goroutines. A call that its context ends leaves the driver at work:
// the driver cannot be interrupted.
type Client struct {
	o    Options
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when the program has ended

	mu      sync.Mutex
	lastID  uint64
	waiting map[uint64]chan Reply
	ended   error // why no more answers come
}

// Start starts gpucr-cuda and returns at once; it loads the driver meanwhile,
// and a driver that cannot be loaded fails the requests, with ErrNoDriver.
func Start(o Options) (*Client, error) {
	if o.Logger == nil {
		return nil, errors.New("cuda: options lack a logger")
	}
	if o.Program == "" {
		return nil, errors.New("cuda: options lack the path of gpucr-cuda")
	}
	cmd := exec.Command(o.Program)
	if o.Library != "" {
		cmd.Args = append(cmd.Args, o.Library)
	}
	cmd.Dir = "/"
	// Not of our process group: what a terminal ends with Ctrl-C would leave processes suspended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cuda: start gpucr-cuda: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("cuda: start gpucr-cuda: %w", err)
	}
	said := &tail{logger: o.Logger}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cuda: start gpucr-cuda: %w", err)
	}
	c := &Client{o: o, cmd: cmd, in: in, done: make(chan struct{}), waiting: map[uint64]chan Reply{}}
	go c.read(out, said)
	return c, nil
}

// read hands answers to those who wait for them, until the program ends.
func (c *Client) read(out io.Reader, said *tail) {
	defer close(c.done)
	d := json.NewDecoder(bufio.NewReader(out))
	for {
		var r Reply
		if err := d.Decode(&r); err != nil {
			break
		}
		c.mu.Lock()
		w := c.waiting[r.ID]
		delete(c.waiting, r.ID)
		c.mu.Unlock()
		if w != nil {
			w <- r
		}
	}
	_, _ = io.Copy(io.Discard, out)
	err := c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch text := said.last(); {
	case text != "":
		c.ended = &endedError{fmt.Errorf("cuda: gpucr-cuda ended: %s", text)}
	case err != nil:
		c.ended = &endedError{fmt.Errorf("cuda: gpucr-cuda ended: %w", err)}
	default:
		c.ended = &endedError{errors.New("cuda: gpucr-cuda has ended")}
	}
	for id, w := range c.waiting {
		close(w)
		delete(c.waiting, id)
	}
}

// Close ends gpucr-cuda, after it has let go every process that is suspended and guarded. When it was asked for nothing
// it is not waited for until it has loaded the driver.
func (c *Client) Close() error {
	c.mu.Lock()
	unused := c.lastID == 0
	c.mu.Unlock()
	if unused {
		_ = c.cmd.Process.Kill()
		_ = c.in.Close()
		<-c.done
		return nil
	}
	_ = c.in.Close()
	select {
	case <-c.done:
	case <-time.After(closeTimeout):
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("cuda: gpucr-cuda did not end in %v and was killed; look at the states of its processes",
			closeTimeout)
	}
	if s := c.cmd.ProcessState; s != nil && !s.Success() {
		return c.ended
	}
	return nil
}

// endedError is about a program that has ended, by itself or because it was killed, or that is about to: it takes no
// more requests then, while its end may not be known yet.
type endedError struct{ error }

func (e *endedError) Unwrap() error { return e.error }

// hasEnded tells such an error.
func hasEnded(err error) bool {
	var e *endedError
	return errors.As(err, &e)
}

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, req Request) (Reply, error) {
	w := make(chan Reply, 1)
	c.mu.Lock()
	if c.ended != nil {
		defer c.mu.Unlock()
		return Reply{}, c.ended
	}
	c.lastID++
	req.ID = c.lastID
	c.waiting[req.ID] = w
	line, err := json.Marshal(req)
	if err == nil {
		if _, err = c.in.Write(append(line, '\n')); err != nil {
			err = &endedError{err}
		}
	}
	if err != nil {
		delete(c.waiting, req.ID)
	}
	c.mu.Unlock()
	if err != nil {
		return Reply{}, fmt.Errorf("cuda: ask gpucr-cuda: %w", err)
	}
	select {
	case r, ok := <-w:
		if !ok {
			c.mu.Lock()
			defer c.mu.Unlock()
			return Reply{}, c.ended
		}
		return r, r.Refusal.err(req)
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, req.ID)
		c.mu.Unlock()
		return Reply{}, ctx.Err()
	}
}

func (r *Refusal) err(req Request) error {
	switch {
	case r == nil:
		return nil
	case r.Absent:
		return fmt.Errorf("%w: %s", ErrNoDriver, r.Text)
	case r.TooOld:
		return ErrTooOld
	case r.Code == 0:
		return fmt.Errorf("cuda: %s: %s", req.Op, r.Text)
	}
	return &Error{Op: req.Op, PID: req.PID, Code: r.Code, Name: r.Name, Text: r.Text}
}

// State asks where a process stands.
func (c *Client) State(ctx context.Context, pid int) (State, error) {
	r, err := c.call(ctx, Request{Op: OpState, PID: pid})
	return r.State, err
}

// RestoreThread gives the id of the process's thread that serves the driver.
func (c *Client) RestoreThread(ctx context.Context, pid int) (int, error) {
	r, err := c.call(ctx, Request{Op: OpThread, PID: pid})
	return r.Thread, err
}

// Do takes one step. timeout, 0 for none, bounds Lock; pairs are for Restore.
func (c *Client) Do(ctx context.Context, a Action, pid int, timeout time.Duration, pairs []Pair) error {
	_, err := c.call(ctx, Request{Op: string(a), PID: pid, Timeout: timeout, Pairs: pairs})
	return err
}

// Info is what the driver says of itself and the machine.
type Info struct {
	// CUDA is the version of the interface, 13000 for 13.0; Driver that of the kernel's module, such as 580.159.04, ""
	// when unknown.
	CUDA    int      `json:"cuda"`
	Driver  string   `json:"driver,omitempty"`
	Library string   `json:"library"`
	Devices []Device `json:"devices"`
}

// Info asks for versions and GPUs.
func (c *Client) Info(ctx context.Context) (Info, error) {
	r, err := c.call(ctx, Request{Op: OpInfo})
	return Info{CUDA: r.Version, Driver: moduleVersion(), Library: r.Library, Devices: r.Devices}, err
}

// tail keeps the last line the program wrote to its standard error, and logs all of them.
type tail struct {
	logger *slog.Logger
	mu     sync.Mutex
	text   string
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := lastLine(p); s != "" {
		t.text = s
		t.logger.Warn("gpucr-cuda", "says", s)
	}
	return len(p), nil
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}
