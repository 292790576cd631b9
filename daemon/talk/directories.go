package talk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// Directories are the client's end of a connection, and what came over it.
type Directories struct {
	conn   wire.Conn
	images *os.File
}

// Pass makes the connection for the request id to the daemon of the store at dir. work is CRIU's work directory, ""
// for a dump. wire.ErrGone when no daemon takes it.
func Pass(ctx context.Context, dir, id, work string) (*Directories, error) {
	var files []*os.File
	if work != "" {
		f, err := os.Open(work)
		if err != nil {
			return nil, fmt.Errorf("open the work directory: %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	c, err := wire.DialPackets(ctx, dir)
	if errors.Is(err, wire.ErrNoDaemon) {
		return nil, fmt.Errorf("%w: %w", wire.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	if err := c.Send(Packet{Hand: &Hand{ID: id}}, files...); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", wire.ErrGone, err), c.Close())
	}
	return &Directories{conn: c}, nil
}

// Take takes the daemon's answer, which it sends before it says Prepared, and puts the path of the images into p.
func (d *Directories) Take(p *Prepared) error {
	var answer Packet
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

// LetGo closes the images: the daemon waits for that before it ends their mount.
func (d *Directories) LetGo() {
	if d.images != nil {
		d.images.Close()
	}
	d.images = nil
}

// Close ends the connection, too.
func (d *Directories) Close() {
	d.LetGo()
	d.conn.Close()
}
