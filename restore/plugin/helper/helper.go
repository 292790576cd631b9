package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin/pending"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// Filler moves the contents of BOs into place when turn is closed, or at once when turn is nil.
type Filler func(ctx context.Context, plan vram.Plan, opts vram.Options, turn <-chan struct{}) (vram.Report, error)

// Directory fills from the files of a directory, on any file system.
func Directory(images string) Filler {
	return func(ctx context.Context, plan vram.Plan, opts vram.Options, turn <-chan struct{}) (vram.Report, error) {
		if turn != nil {
			select {
			case <-turn:
			case <-ctx.Done():
				return vram.Report{}, context.Cause(ctx)
			}
		}
		return vram.Fill(ctx, vram.Dir(images), plan, opts)
	}
}

// Announced is a fill for the restore server to make.
type Announced struct {
	Conn *os.File // to the filler: a daemon, or this process
	// Packets are what the server sends, with dma-bufs. They are valid for another Conn,
	// too.
	Packets []Packet
	// Serve, when set, is to be run: it fills in this process until it is done.
	Serve func(context.Context)
}

// Packet has the bytes of a packet and the indices of the buffer objects that go
// with it.
type Packet struct {
	BOs   []uint32
	Bytes []byte
}

// Announcer announces a fill that the restore server makes to the filler. With again,
// the first filler is gone and another one takes its place.
type Announcer func(ctx context.Context, plan vram.Plan, opts vram.Options, again bool) (Announced, error)

// Event says that the queues of a process run, or that the process was ended.
type Event struct {
	PID int    `json:"pid"`
	Why string `json:"why,omitempty"` // it was ended; its queues run where this is empty
}

// Options are what a helper needs to know of its surroundings. The zero value of a
// field selects its default.
type Options struct {
	// Sys is the sysfs of this machine. Default: /sys.
	Sys fs.FS
	// Settings are the switches of GPU mapping and the bound of staging memory.
	Settings topology.Settings
	// Schema is that of dumped images. Default: that of the CRIU that dumps.
	Schema image.Schema
	// Sequential makes every task wait for its own fill.
	Sequential bool
	// Fills looks once at an image directory, by a path that is good as long as
	// this process has it open, and gives how BOs are filled from it. direct says
	// that the directory itself is read. Default: [Directory].
	Fills func(images string) (fill Filler, direct bool)
	// Announces gives, for the same directory, how the restore server has BOs filled.
	// Restores need it.
	Announces func(images string) Announcer
	// Lazy lets a process run when what its CPU may touch of its BOs is in
	// place, and its queues when the rest is. It asks for Watchdog.
	Lazy bool
	// Watchdog starts a process that runs [Watch] at the other end of the
	// connection, and outlives this one. ended is closed when it has ended.
	Watchdog func() (c *wire.Conn, ended <-chan struct{}, err error)
	// Pending is a file whose locks tell dumps whose GPU memory is on its way.
	// Default: pending.Path.
	Pending string
	// Tell, when set, is told of each process when its queues run.
	Tell func(Event)
	// Abandoned, when set, is told of each process of another restore that is ended
	// because nobody brings its GPU memory any more.
	Abandoned func(Event)
	// Alone, when set, is called when CRIU is gone and work is left: nobody
	// listens to standard error any more.
	Alone func()
	// VRAM tunes fills and reads.
	VRAM vram.Options
	// Stall is how long a fill or a read may go on without a byte moving, until
	// it counts as failed. Default: two minutes.
	Stall time.Duration
	// Refuse, when set, is told to the plugin in place of any work: the
	// plugin's log is where people look.
	Refuse error
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
}

func (o *Options) setDefaults() {
	if o.Sys == nil {
		o.Sys = os.DirFS("/sys")
	}
	if o.Fills == nil {
		o.Fills = func(images string) (Filler, bool) { return Directory(images), true }
	}
	if o.Watchdog == nil || o.Sequential {
		o.Lazy = false
	}
	if o.Pending == "" {
		o.Pending = pending.Path
	}
	if o.Tell == nil {
		o.Tell = func(Event) {}
	}
	if o.Abandoned == nil {
		o.Abandoned = func(Event) {}
	}
	if o.Alone == nil {
		o.Alone = func() {}
	}
	if o.Stall == 0 {
		o.Stall = 2 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if m := o.Settings.MaxBufferSize; m > 0 {
		o.VRAM.MaxBuffer = int64(min(m, 1<<62))
	}
}

// Stages of CRIU, as HELLO names them.
const (
	stageDump    = 0
	stageRestore = 2
)

// lastWords is how long the connection of a CRIU that has ended is read.
const lastWords = 500 * time.Millisecond

// errNoFile says that an image does not belong to the plugin.
var errNoFile = fmt.Errorf("no such image: %w", unix.ENOENT)

// Serve does what the plugin asks for over the control connection, until the
// plugin says goodbye or CRIU ends, and closes the connection.
func Serve(ctx context.Context, control *wire.Conn, opts Options) error {
	opts.setDefaults()
	defer endAbandoned(opts.Pending, opts.Logger, opts.Abandoned)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer control.Close()
	// What CRIU has said before it ended is listened to: it may have paused a
	// process. Forks of CRIU may hold the connection for longer.
	defer context.AfterFunc(ctx, func() { control.Until(time.Now().Add(lastWords)) })()

	criu, pidfd, err := control.Peer()
	if err != nil {
		return err
	}
	gone, err := watch(pidfd, func() { cancel(errors.New("criu has ended")) })
	if err != nil {
		return fmt.Errorf("criu, process %d: %w", criu, err)
	}
	defer gone.stop()

	hello, files, err := control.Receive()
	if err != nil {
		return err
	}
	defer closeAll(files)
	if hello.Type != wire.Hello || len(files) == 0 {
		return fmt.Errorf("message %d of %d descriptors before HELLO: %w", hello.Type, len(files), wire.ErrProtocol)
	}
	p := &session{opts: opts, control: control, images: files[0], criu: gone}
	switch {
	case hello.ID == stageDump && len(files) == 1:
		return p.dump(ctx, hello.Count)
	case hello.ID == stageRestore && len(files) == 2:
		link, err := wire.NewConn(files[1])
		if err != nil {
			return err
		}
		return p.restore(ctx, link)
	}
	return fmt.Errorf("stage %d with %d descriptors: %w", hello.ID, len(files), wire.ErrProtocol)
}

// session is what dumps and restores share.
type session struct {
	opts    Options
	control *wire.Conn
	images  *os.File // the image directory
	criu    *watched
}

// dir is the path of the image directory for this process.
func (p *session) dir() string { return fmt.Sprintf("/proc/self/fd/%d", p.images.Fd()) }

// writeImage makes an image file.
func (p *session) writeImage(name string, b []byte) error {
	return os.WriteFile(filepath.Join(p.dir(), name), b, 0o644)
}

// hostTopology reads the topology of this machine.
func (p *session) hostTopology() (*topology.System, error) { return topology.Parse(p.opts.Sys) }

// answer tells how a request ended.
func answer(c *wire.Conn, typ wire.Type, text string, err error) error {
	return reply(c, &wire.Message{Type: typ}, text, err)
}

// reply completes and sends an answer.
func reply(c *wire.Conn, m *wire.Message, text string, err error, files ...*os.File) error {
	m.SetText(text)
	if err != nil {
		m.Status = -int32(unix.EIO)
		var errno unix.Errno
		if errors.As(err, &errno) && (errno == unix.ENOENT || errno == unix.ENOTSUP) &&
			(errors.Is(err, errNoFile) || errors.Is(err, errNotOurs)) {
			m.Status = -int32(errno)
		}
		m.SetText(err.Error())
	}
	return c.Send(m, files...)
}

// working tells the plugin every second that a request is being worked on, until
// the function it returns is called.
func working(c *wire.Conn) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if c.Send(&wire.Message{Type: wire.Working}) != nil {
					return
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// stalled cancels ctx when progress has not been told for the limit, since turn was
// closed if there is one, and until stop is called: a filler that has moved everything must
// still say so. closes tells that files are closed when all is moved, which is not watched:
// some file systems write a file to its storage then.
func stalled(ctx context.Context, limit time.Duration, turn <-chan struct{}, closes bool) (watched context.Context,
	progress func(done, total uint64), stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	var last atomic.Uint64
	var moved, closing atomic.Bool
	timer := make(chan struct{})
	go func() {
		defer close(timer)
		if turn != nil {
			select {
			case <-turn:
			case <-watched.Done():
				return
			}
		}
		tick := time.NewTicker(limit)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
				if !moved.Swap(false) && !closing.Load() {
					cancel(fmt.Errorf("no byte has moved for %v", limit))
				}
			}
		}
	}()
	progress = func(done, total uint64) {
		closing.Store(closes && done == total)
		if last.Swap(done) != done {
			moved.Store(true)
		}
	}
	return watched, progress, func() {
		cancel(nil)
		<-timer
	}
}

// receive waits for a message of the control connection; io.EOF and the end of
// ctx are told apart from errors.
func (p *session) receive(ctx context.Context) (*wire.Message, []*os.File, error) {
	m, files, err := p.control.Receive()
	switch {
	case err == nil:
		return m, files, nil
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err == io.EOF:
		return nil, nil, errors.New("criu closed its connection without a goodbye")
	}
	return nil, nil, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// nodePath is a render node's path.
func nodePath(minor uint32) string { return fmt.Sprintf("/dev/dri/renderD%d", minor) }
