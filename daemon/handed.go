package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// The daemon and a command that restores or dumps need not see the same files: each may be in a mount namespace of its own. So they pass no paths but open directories,
// over fill.sock: the command CRIU's work directory, where the daemon's guardian listens, and the daemon the images. These are a mount that is attached nowhere, of which
// nothing is left when the daemon and the command are gone, however they went. The work directory cannot be one: CRIU mounts the yard of its cgroups in it, and mounts are
// made in one's own mount namespace only.

// handPacket begins such a connection, with the work directory of a restore as its one descriptor. The answer has the images.
type handPacket struct {
	ID string `json:"id"` // of the request that the connection goes with
}

// handed is the daemon's end.
type handed struct {
	conn wire.Conn
	work *os.File // nil for a dump
	once sync.Once
	done chan struct{} // closed by close
}

// handedOf gives the place where the connection of a request comes, or is.
func (d *Daemon) handedOf(id string) chan *handed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hands[id] == nil {
		d.hands[id] = make(chan *handed, 1)
	}
	return d.hands[id]
}

// hand keeps the connection of a request open until the request or the client is done with it.
func (f *filler) hand(c wire.Conn, id string, files []*os.File) error {
	h := &handed{conn: c, done: make(chan struct{})}
	if len(files) > 1 || id == "" {
		wire.CloseFiles(files)
		return errPacket
	}
	if len(files) == 1 {
		h.work = files[0]
	}
	place := f.d.handedOf(id)
	select {
	case place <- h:
	default:
		wire.CloseFiles(files)
		return &index.Error{Class: index.Exists, Op: "restore", Err: fmt.Errorf("request %s has its directories already", id)}
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		files, _ := c.Receive(&fillPacket{}) // nothing more comes
		wire.CloseFiles(files)
	}()
	select {
	case <-h.done:
	case <-gone:
	case <-f.ctx.Done():
	}
	select {
	case <-place:
		h.close() // the request never came
	default:
	}
	f.d.mu.Lock()
	delete(f.d.hands, id)
	f.d.mu.Unlock()
	c.Close()
	<-gone
	return nil
}

// handedFor waits for the connection of a request, which its client has made before, with a work directory or without one.
func (d *Daemon) handedFor(ctx context.Context, id string, work bool) (*handed, error) {
	select {
	case h := <-d.handedOf(id):
		if work != (h.work != nil) {
			h.close()
			return nil, errPacket
		}
		return h, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-d.filler.ctx.Done():
		return nil, errStopping()
	case <-time.After(wire.Patience):
		return nil, errors.New("the request came without its directories")
	}
}

// give passes the images to the command.
func (h *handed) give(images *os.File) error {
	if err := h.conn.Send(fillPacket{Hand: &handPacket{}}, images); err != nil {
		return fmt.Errorf("pass the images: %w", err)
	}
	return nil
}

func (h *handed) close() {
	h.once.Do(func() {
		if h.work != nil {
			h.work.Close()
		}
		close(h.done)
	})
}

// fdPath names an open directory for this process's children: they may open it while this process has it open.
func fdPath(dir *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd()) }

// directories are the client's end, and what came over it.
type directories struct {
	conn   wire.Conn
	images *os.File
}

// passDirectories makes the connection for the request id to the daemon of the store at dir. work is CRIU's work directory, "" for a dump.
func passDirectories(ctx context.Context, dir, id, work string) (*directories, error) {
	var files []*os.File
	if work != "" {
		f, err := os.Open(work)
		if err != nil {
			return nil, fmt.Errorf("open the work directory: %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	c, err := dialFill(ctx, dir)
	if errors.Is(err, wire.ErrNoDaemon) {
		return nil, fmt.Errorf("%w: %w", wire.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	if err := c.Send(fillPacket{Hand: &handPacket{ID: id}}, files...); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", wire.ErrGone, err), c.Close())
	}
	return &directories{conn: c}, nil
}

// take takes the daemon's answer, which it sends before it says Prepared, and puts the path of the images into p.
func (d *directories) take(p *Prepared) error {
	var answer fillPacket
	files, err := d.conn.Receive(&answer)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrGone, err)
	}
	defer wire.CloseFiles(files)
	if answer.Hand == nil || len(files) != 1 {
		return errPacket
	}
	// What came is O_PATH and cannot be read itself.
	if d.images, err = os.Open(fdPath(files[0])); err != nil {
		return fmt.Errorf("open the images: %w", err)
	}
	p.Images = fdPath(d.images)
	return nil
}

// letGo closes the images: the daemon waits for that before it ends their mount.
func (d *directories) letGo() {
	if d.images != nil {
		d.images.Close()
	}
	d.images = nil
}

// close ends the connection, too.
func (d *directories) close() {
	d.letGo()
	d.conn.Close()
}
