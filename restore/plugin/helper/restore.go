package helper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin/pending"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/touch"
)

// maxFills bounds the fills under way at once; they share the staging memory.
const maxFills = 8

// restore is one run of criu restore.
type restore struct {
	*session
	ctx       context.Context // ends with CRIU
	work      context.Context // of fills; they may go on when CRIU is gone
	ready     chan struct{}   // closed when the next six are set
	set       *image.Set
	sys       *topology.System
	objects   *objects
	filler    Filler
	announcer Announcer
	direct    bool // filler reads the image directory
	err       error

	server   *server
	turns    turns // of fills of what follows
	watchdog *watchdog
	pending  *pending.Processes
	wg       sync.WaitGroup

	mu       sync.Mutex
	conns    map[*wire.Conn]bool
	tasks    map[int]*task // by pid
	firstErr error         // of any task
}

// task is a process under restore that has asked for its KFD, or for objects of a
// render node.
type task struct {
	pid      int
	image    *image.Process // of its KFD; nil: it has none, or not yet
	end      *watched
	cpuReady chan struct{} // closed when what its CPU may touch is in place, or nothing will be
	filled   chan struct{} // closed when the fill has ended
	runs     func()        // says, any number of times, that it runs, or waits for its fill
	ran      chan struct{} // closed then
	report   string        // how it went
	err      error         // of the fill
	memory   []touch.Span  // of its own that its GPUs use
	later    []extent      // of BOs that may follow it; before cpuReady is closed, its fill's

	resumed bool  // it may run
	lazy    bool  // it runs before its queues do
	at      int64 // its byte of the file of pending
}

func (p *session) restore(ctx context.Context, link *wire.Conn) (err error) {
	work, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	ctx, cancel := context.WithCancel(ctx)
	r := &restore{session: p, ctx: ctx, work: work, ready: make(chan struct{}), server: newServer(link),
		conns: map[*wire.Conn]bool{}, tasks: map[int]*task{}, watchdog: newWatchdog(p.opts.Watchdog, p.opts.Logger),
		pending: pending.New(p.opts.Pending)}
	r.wg.Go(r.prepare)
	r.wg.Go(r.serveServer)
	r.track(link)
	bye, gaveUp := false, false
	defer func() {
		cancel()
		r.closeConns()
		if !bye {
			// CRIU learns of it by its next question, and fails. It must not be
			// anticipated: past a certain stage it waits for ever for a task
			// that was killed.
			p.control.Close()
			<-p.criu.ended
			if killed, e := r.killTasks(); killed {
				abort(err)
				err = errors.Join(err, e)
			}
		}
		<-r.ready
		if !r.direct {
			p.images.Close()
		}
		if gaveUp || !r.anyPending() {
			r.wg.Wait()
			p.images.Close()
		}
		if bye {
			err = answer(p.control, wire.OK, "", err)
		}
		if r.anyPending() {
			p.opts.Alone()
		}
		r.wg.Wait()
		for _, t := range r.tasks {
			t.end.stop()
		}
		if r.objects != nil {
			r.objects.close()
		}
		r.watchdog.close()
		if err := r.pending.Close(); err != nil {
			r.opts.Logger.Error("the record of a process that is ready stays", "err", err)
		}
		p.images.Close()
	}()
	for {
		m, files, err := p.receive(ctx)
		if err != nil {
			return err
		}
		closeAll(files)
		switch m.Type {
		case wire.Resume:
			stop := working(p.control)
			lazy, err := r.wait(int(m.PID))
			stop()
			text, others := r.summary(int(m.PID))
			answer := &wire.Message{Type: wire.OK, Count: uint32(others)}
			if lazy {
				answer.ID = 1
			}
			if err := reply(p.control, answer, text, err); err != nil {
				return err
			}
		case wire.Resumed:
			if m.Status != 0 {
				// The plugin ends it, of which criu sees only that it is gone.
				r.opts.Tell(Event{PID: int(m.PID), Why: m.String()})
				continue
			}
			r.resumed(int(m.PID))
		case wire.Bye:
			bye = true
			if gaveUp = m.Status != 0; gaveUp {
				return r.abandon(cancel, abort)
			}
			return nil
		default:
			return fmt.Errorf("message %d in a restore: %w", m.Type, wire.ErrProtocol)
		}
	}
}

// abandon ends all processes of a restore that CRIU has given up.
func (r *restore) abandon(cancel func(), abort func(error)) error {
	cancel()
	r.closeConns()
	// They are gone when their fills end: that is not why.
	err := r.kill()
	abort(errors.New("criu has given up"))
	return err
}

// resumed notes that a process may run.
func (r *restore) resumed(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[pid]
	if t == nil {
		return
	}
	t.resumed = true
	t.runs()
	if t.lazy {
		r.wg.Go(func() { r.fillLater(t) })
	} else {
		r.wg.Go(func() { r.opts.Tell(Event{PID: pid}) })
	}
}

// anyPending tells whether processes run before their queues do.
func (r *restore) anyPending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tasks {
		select {
		case <-t.filled:
		default:
			if t.lazy {
				return true
			}
		}
	}
	return false
}

// prepare reads the images and the topology.
func (r *restore) prepare() {
	defer close(r.ready)
	r.announcer = r.opts.Announces(r.dir())
	if r.filler, r.direct = r.opts.Fills(r.dir()); r.opts.Lazy {
		// It takes as long as a process does to start.
		r.wg.Go(func() {
			if err := r.watchdog.begin(); err != nil {
				r.opts.Logger.Warn("processes wait for all of their GPU memory", "err", err)
			}
		})
	}
	if r.err = r.opts.Refuse; r.err != nil {
		return
	}
	if r.set, r.err = image.Read(os.DirFS(r.dir())); r.err != nil {
		return
	}
	r.objects = newObjects(r.set)
	if r.sys, r.err = r.hostTopology(); errors.Is(r.err, topology.ErrNoKFD) {
		r.err = nil
	}
}

// check maps the GPUs of the checkpoint onto those that a task sees; all where
// it sees none.
func (r *restore) check(visible []uint32) *kfd.Report {
	host := kfd.Host{Topology: r.sys}
	if r.sys != nil && len(visible) > 0 {
		host.Topology = &topology.System{}
		for _, n := range r.sys.Nodes {
			if !n.IsGPU() || slices.Contains(visible, n.GPUID) {
				host.Topology.Nodes = append(host.Topology.Nodes, n)
			}
		}
	}
	return kfd.Check(r.set, host, r.opts.Settings)
}

// track notes a connection to be closed at the end.
func (r *restore) track(c *wire.Conn) {
	r.mu.Lock()
	r.conns[c] = true
	r.mu.Unlock()
	if r.ctx.Err() != nil {
		c.Close()
	}
}

func (r *restore) untrack(c *wire.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

func (r *restore) closeConns() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// killTasks ends the processes whose BOs were handed over, unless all may run.
func (r *restore) killTasks() (killed bool, err error) {
	r.mu.Lock()
	complete := true
	for _, t := range r.tasks {
		complete = complete && t.resumed
	}
	r.mu.Unlock()
	if complete {
		return false, nil
	}
	return true, r.kill()
}

// kill ends the processes whose BOs were handed over.
func (r *restore) kill() error {
	r.mu.Lock()
	tasks := slices.Collect(maps.Values(r.tasks))
	r.mu.Unlock()
	var errs []error
	for _, t := range tasks {
		if err := t.end.kill(); err != nil {
			errs = append(errs, fmt.Errorf("kill process %d, which is not wholly restored: %w", t.pid, err))
		}
	}
	return errors.Join(errs...)
}

// wait waits until a process may run, which none may before what the CPU may touch is
// in place for all. It is lazy when it runs before all of its own is. The error is the
// first of any process, or errNoFile for one without KFD.
func (r *restore) wait(pid int) (lazy bool, err error) {
	r.mu.Lock()
	mine := r.tasks[pid]
	tasks := slices.Collect(maps.Values(r.tasks))
	r.mu.Unlock()
	for _, t := range tasks {
		<-t.cpuReady
	}
	failed := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.firstErr
	}
	if err := failed(); err != nil {
		return false, err
	}
	if err := r.settleAll(); err != nil {
		return false, err
	}
	if mine == nil {
		return false, errNoFile
	}
	if mine.image == nil {
		return true, nil // it has no queues of the KFD's
	}
	if lazy, err = r.mayRunEarly(mine); lazy || err != nil {
		return lazy, err
	}
	mine.runs()
	<-mine.filled
	if err := failed(); err != nil {
		return false, err
	}
	return false, r.touchMemory(mine)
}

// mayRunEarly tells whether a process may run now, and notes it, with the watchdog too.
func (r *restore) mayRunEarly(t *task) (bool, error) {
	select {
	case <-t.filled:
		return false, nil
	default:
	}
	if cpu, err := mapped(t.pid, t.later, anyDevice); cpu || err != nil {
		return false, err
	}
	at, err := r.pending.Add(t.pid)
	if err == nil {
		if err = r.watchdog.add(t, r.pending.Locks()); err != nil {
			err = errors.Join(err, r.pending.Remove(at))
		}
	}
	if err != nil {
		r.opts.Logger.Warn("a process waits for all of its GPU memory", "pid", t.pid, "err", err)
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.lazy, t.at = true, at
	return true, nil
}

// summary tells how a process was filled, and how many others' queues do not run
// yet.
func (r *restore) summary(pid int) (text string, others int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tasks {
		if t.pid == pid {
			text = t.report
		} else if !t.resumed {
			others++
		}
	}
	return text, others
}

// addTask takes in a process that restores its KFD, once, and its pidfd over.
func (r *restore) addTask(pid int, pidfd *os.File, p *image.Process) (*task, error) {
	if err := r.addHolder(pid, pidfd); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[pid]
	if t.image != nil {
		return nil, fmt.Errorf("process %d has /dev/kfd open twice, which cannot be restored "+
			"(hint: dump it when only one is open)", pid)
	}
	t.image, t.memory = p, hostMemory(*p)
	t.cpuReady, t.filled, t.ran = make(chan struct{}), make(chan struct{}), make(chan struct{})
	t.runs = sync.OnceFunc(func() { close(t.ran) })
	return t, nil
}

// addHolder takes in a process that holds buffer objects, and its pidfd over.
func (r *restore) addHolder(pid int, pidfd *os.File) error {
	end, err := watch(pidfd, func() {})
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks[pid] != nil {
		end.stop()
		return nil
	}
	nothing := make(chan struct{}) // to wait for
	close(nothing)
	r.tasks[pid] = &task{pid: pid, end: end, cpuReady: nothing, filled: nothing, ran: nothing, runs: func() {}}
	return nil
}

// markCPUReady says, once, that what a task's CPU may touch is in place.
func (r *restore) markCPUReady(t *task, report string, later []extent) {
	r.mu.Lock()
	t.report, t.later = report, later
	r.mu.Unlock()
	close(t.cpuReady)
}

// finish says, once, how a task's fill ended.
func (r *restore) finish(t *task, report string, err error) {
	r.mu.Lock()
	t.report, t.err = report, err
	if err != nil && r.firstErr == nil {
		r.firstErr = err
	}
	r.mu.Unlock()
	close(t.filled)
	select {
	case <-t.cpuReady:
	default:
		close(t.cpuReady)
	}
}
