package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// errLeaving: the daemon is there, and about to leave.
var errLeaving = fmt.Errorf("it leaves: %w", wire.ErrNoDaemon)

// answerTimeout bounds the wait for a daemon to say that it stays.
const answerTimeout = time.Minute

// client speaks to the daemon of one store. Each call has a connection of its own.
type client struct {
	dir    string
	held   net.Conn    // open while the daemon is to stay
	gone   atomic.Bool // it has ended, as far as onEnd looked
	http   *http.Client
	closed sync.Once
	proc   *wire.Process // the daemon's; nil when it is in another pid namespace
	pid    int
}

// newClient looks for the daemon of the store at dir and holds it; ErrNoDaemon when there is none, which errLeaving
// is, too.
func newClient(ctx context.Context, dir string) (_ *client, err error) {
	conn, err := wire.Operations.Dial(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	_, pid, err := wire.Peer(conn)
	if err != nil {
		return nil, fmt.Errorf("ask who the daemon is: %w", err)
	}
	if err := askToStay(ctx, conn, wire.HoldPath); err != nil {
		return nil, err
	}
	c := &client{dir: dir, held: conn, pid: pid}
	if pid != 0 {
		c.proc, err = wire.OpenProcess(pid)
		if errors.Is(err, syscall.ESRCH) {
			return nil, errLeaving // it was killed this very moment
		}
		if err != nil {
			return nil, fmt.Errorf("take hold of the daemon, process %d; raise the limit of open files (ulimit -n) or "+
				"try again: %w", pid, err)
		}
	}
	c.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		WriteBufferSize:    1 << 20,
		ReadBufferSize:     1 << 20,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return wire.Operations.Dial(ctx, dir)
		},
	}}
	return c, nil
}

// askToStay holds the daemon at the other end of a new connection: path is wire.HoldPath, with a query or without.
func askToStay(ctx context.Context, conn net.Conn, path string) error {
	conn.SetDeadline(time.Now().Add(answerTimeout))
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	req, err := http.NewRequest(http.MethodPost, "http://daemon"+path, nil)
	if err != nil {
		return err
	}
	err = req.Write(conn)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(bufio.NewReader(conn), req)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the daemon does not answer: %w", err)
	case err != nil: // it left, or was killed
		return errLeaving
	}
	// The body is left alone: it ends with the daemon.
	switch resp.StatusCode {
	case http.StatusOK:
		return conn.SetDeadline(time.Time{})
	case http.StatusServiceUnavailable:
		return errLeaving
	}
	return fmt.Errorf("the daemon answered %q; it is of another version: unmount and mount again", resp.Status)
}

// onEnd calls f when the daemon ends, unless the function that it returns is called before.
func (c *client) onEnd(f func()) (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Nothing ever comes on this connection.
		if _, err := io.Copy(io.Discard, c.held); !errors.Is(err, os.ErrDeadlineExceeded) {
			c.gone.Store(true)
			f()
		}
	}()
	return func() {
		c.held.SetReadDeadline(time.Now())
		<-ended
		c.held.SetReadDeadline(time.Time{})
	}
}

// close ends the session, once.
func (c *client) close() {
	c.closed.Do(func() {
		c.held.Close()
		c.http.CloseIdleConnections()
		if c.proc != nil {
			c.proc.Close()
		}
	})
}

// call runs one operation in the daemon.
func (c *client) call(ctx context.Context, name string, req, res any, st wire.Streams) error {
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	var body io.Reader = bytes.NewReader(line)
	if st.In != nil {
		body = &request{line: line, in: st.In}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://daemon"+wire.OpsPath+name, body)
	if err != nil {
		return err
	}
	if st.In != nil {
		r.Header.Set(wire.StreamHeader, "in")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		if errors.Is(err, wire.ErrNoDaemon) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
			errors.Is(err, syscall.EPIPE) ||
			c.ended(ctx) {
			return fmt.Errorf("%w: %w", wire.ErrGone, err)
		}
		return fmt.Errorf("speak to the daemon: %w", err)
	}
	defer resp.Body.Close()
	err = wire.ReadFrames(bufio.NewReaderSize(resp.Body, 1<<20), st, res)
	if cerr := ctx.Err(); err != nil && cerr != nil {
		return cerr
	}
	return err
}

// endTimeout is how long a daemon that broke a connection has to turn out to have ended.
const endTimeout = time.Second

// ended tells whether the daemon has ended or is just ending. net/http has too many words for a connection that broke
// to judge by them.
func (c *client) ended(ctx context.Context) bool {
	if c.gone.Load() || c.proc == nil {
		return c.gone.Load()
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return c.proc.Wait(ctx) == nil
}

// request is a body of a line and a raw stream. net/http copies bodies 32 KiB at a time and flushes after each;
// WriteTo gives it up to 1 MiB, which took an import of 800 MB through the socket from 1.8 to 1.2 s.
type request struct {
	line []byte
	in   io.Reader
}

func (r *request) Read(p []byte) (int, error) {
	if len(r.line) > 0 {
		n := copy(p, r.line)
		r.line = r.line[n:]
		return n, nil
	}
	return r.in.Read(p)
}

func (r *request) WriteTo(w io.Writer) (sum int64, err error) {
	for buf := make([]byte, 1<<20); ; {
		n, rerr := io.ReadAtLeast(r, buf, 1)
		if n > 0 {
			n, err = w.Write(buf[:n])
			sum += int64(n)
		}
		switch {
		case err != nil || rerr == io.EOF:
			return sum, err
		case rerr != nil:
			return sum, rerr
		}
	}
}

// waitExit lets the daemon leave and returns when its process is gone, so that the store is free.
func (c *client) waitExit(ctx context.Context) error {
	c.held.Close()
	if c.proc != nil {
		return c.proc.Wait(ctx)
	}
	for {
		conn, err := wire.Operations.Dial(ctx, c.dir)
		if errors.Is(err, wire.ErrNoDaemon) {
			return nil
		}
		if err != nil {
			return err
		}
		conn.Close()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
