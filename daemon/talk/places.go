package talk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Packet is the only packet of each side. The command's has one descriptor, the work directory, for a restore, and none
// for a dump. The daemon's has the images.
type Packet struct {
	Hand *Hand `json:"hand,omitempty"`
}

// Hand says what a connection goes with.
type Hand struct {
	ID string `json:"id"` // of the request
}

var errPacket = errors.New("it sent what belongs to no restore or dump")

// Places is where the daemon has connections and requests meet.
type Places struct {
	ending <-chan struct{}

	mu sync.Mutex
	at map[string]chan *Handed // by the ID of the request
}

// NewPlaces makes the table of a daemon; it holds nobody any more once ending is closed.
func NewPlaces(ending <-chan struct{}) *Places {
	return &Places{ending: ending, at: map[string]chan *Handed{}}
}

// Handed is the daemon's end of a connection.
type Handed struct {
	conn wire.Conn
	work *os.File // nil for a dump
	once sync.Once
	done chan struct{} // closed by Close
}

// of gives the place where the connection of a request comes, or is.
func (p *Places) of(id string) chan *Handed {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at[id] == nil {
		p.at[id] = make(chan *Handed, 1)
	}
	return p.at[id]
}

// Take keeps the connection of a request open until the request or the client is done with it. It closes the files.
func (p *Places) Take(c wire.Conn, id string, files []*os.File) error {
	h := &Handed{conn: c, done: make(chan struct{})}
	if len(files) > 1 || id == "" {
		wire.CloseFiles(files)
		return errPacket
	}
	if len(files) == 1 {
		h.work = files[0]
	}
	place := p.of(id)
	select {
	case place <- h:
	default:
		wire.CloseFiles(files)
		return &index.Error{
			Class: index.Exists,
			Op:    "restore",
			Err:   fmt.Errorf("request %s has its directories already", id),
		}
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		files, _ := c.Receive(&Packet{}) // nothing more comes
		wire.CloseFiles(files)
	}()
	select {
	case <-h.done:
	case <-gone:
	case <-p.ending:
	}
	select {
	case <-place:
		h.Close() // the request never came
	default:
	}
	p.mu.Lock()
	delete(p.at, id)
	p.mu.Unlock()
	c.Close()
	<-gone
	return nil
}

// For waits for the connection of a request, which its client has made before, with a work directory or without one.
func (p *Places) For(ctx context.Context, id string, work bool) (*Handed, error) {
	select {
	case h := <-p.of(id):
		if work != (h.work != nil) {
			h.Close()
			return nil, errPacket
		}
		return h, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.ending:
		return nil, lifetime.ErrStopping()
	case <-time.After(wire.Timeout):
		return nil, errors.New("the request came without its directories")
	}
}

// Work names CRIU's work directory, until Close.
func (h *Handed) Work() string { return fdPath(h.work) }

// Give passes the images to the command.
func (h *Handed) Give(images *os.File) error {
	if err := h.conn.Send(Packet{Hand: &Hand{}}, images); err != nil {
		return fmt.Errorf("pass the images: %w", err)
	}
	return nil
}

// Close lets the connection end.
func (h *Handed) Close() {
	h.once.Do(func() {
		if h.work != nil {
			h.work.Close()
		}
		close(h.done)
	})
}

// fdPath names an open directory for this process's children: they may open it while this process has it open.
func fdPath(dir *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd()) }
