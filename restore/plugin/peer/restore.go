package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/server/wire"
	"github.com/gpucr/gpucr-fs/restore/touch"
)

// maxFills bounds the fills under way at once; they share the staging memory.
const maxFills = 8

// restore is one run of criu restore.
type restore struct {
	*peer
	ctx   context.Context
	ready chan struct{} // closed when the next three are set
	set   *image.Set
	sys   *topology.System
	err   error

	fills chan struct{} // a token for each fill under way
	wg    sync.WaitGroup

	mu    sync.Mutex
	conns map[*wire.Conn]bool
	tasks map[int]*task // by pid
	first error         // of any task
}

// task is a process under restore that has asked for its KFD.
type task struct {
	pid    int
	end    *watched
	filled chan struct{} // closed when the fill has ended
	report string        // how it went
	memory []touch.Span  // of its own that its GPUs use

	resumed bool // its queues run
}

func (p *peer) restore(ctx context.Context, attach *wire.Conn) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &restore{peer: p, ctx: ctx, ready: make(chan struct{}), fills: make(chan struct{}, maxFills),
		conns: map[*wire.Conn]bool{}, tasks: map[int]*task{}}
	r.wg.Go(r.prepare)
	r.wg.Go(func() { r.accept(attach) })
	r.track(attach)
	bye := false
	defer func() {
		cancel()
		r.closeConns()
		if !bye {
			// CRIU learns of it by its next question, and fails. It must not be
			// anticipated: past a certain stage it waits for ever for a task
			// that was killed.
			p.control.Close()
			<-p.criu.ended
			err = errors.Join(err, r.killTasks())
		}
		r.wg.Wait()
		for _, t := range r.tasks {
			t.end.stop()
		}
		p.images.Close()
		if bye {
			err = answer(p.control, wire.OK, "", err)
		}
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
			err := r.wait(int(m.PID))
			if err == nil {
				err = r.bring(int(m.PID))
			}
			stop()
			text, others := r.summary(int(m.PID))
			if err := reply(p.control, &wire.Message{Type: wire.OK, Count: uint32(others)}, text, err); err != nil {
				return err
			}
		case wire.Resumed:
			r.resumed(int(m.PID))
		case wire.Bye:
			bye = true
			if m.Status != 0 {
				return r.abandon(cancel)
			}
			return nil
		default:
			return fmt.Errorf("message %d in a restore: %w", m.Type, wire.ErrProtocol)
		}
	}
}

// abandon ends all processes of a restore that CRIU has given up.
func (r *restore) abandon(cancel func()) error {
	cancel()
	r.closeConns()
	return r.killTasks()
}

// resumed notes that a process's queues run.
func (r *restore) resumed(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tasks[pid]; t != nil {
		t.resumed = true
	}
}

// prepare reads the images and the topology.
func (r *restore) prepare() {
	defer close(r.ready)
	if r.err = r.opts.Refuse; r.err != nil {
		return
	}
	if r.set, r.err = image.Read(os.DirFS(r.dir())); r.err != nil {
		return
	}
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

func (r *restore) closeConns() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// accept takes the connections of tasks.
func (r *restore) accept(attach *wire.Conn) {
	for {
		m, files, err := attach.Receive()
		if err != nil {
			return // CRIU has ended, or this restore
		}
		if m.Type != wire.Attach || len(files) != 1 {
			closeAll(files)
			continue
		}
		c, err := wire.NewConn(files[0])
		if err != nil {
			r.opts.Logger.Error("a task cannot be reached", "err", err)
			continue
		}
		r.track(c)
		r.wg.Go(func() {
			defer func() {
				c.Close()
				r.mu.Lock()
				delete(r.conns, c)
				r.mu.Unlock()
			}()
			if err := r.serveTask(c); err != nil && r.ctx.Err() == nil {
				r.opts.Logger.Error("restore of a task's device", "err", err)
			}
		})
	}
}

// killTasks ends the processes whose BOs were handed over, unless all are
// complete.
func (r *restore) killTasks() error {
	r.mu.Lock()
	tasks := make([]*task, 0, len(r.tasks))
	complete := true
	for _, t := range r.tasks {
		tasks = append(tasks, t)
		complete = complete && t.resumed
	}
	r.mu.Unlock()
	if complete {
		return nil
	}
	var errs []error
	for _, t := range tasks {
		if err := t.end.kill(); err != nil {
			errs = append(errs, fmt.Errorf("kill process %d, which is not wholly restored: %w", t.pid, err))
		}
	}
	return errors.Join(errs...)
}

// wait waits for the fills of all processes and returns the first error, or
// errNoFile for a process without KFD.
func (r *restore) wait(pid int) error {
	r.mu.Lock()
	mine := r.tasks[pid]
	tasks := make([]*task, 0, len(r.tasks))
	for _, t := range r.tasks {
		tasks = append(tasks, t)
	}
	r.mu.Unlock()
	for _, t := range tasks {
		<-t.filled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first != nil {
		return r.first
	}
	if mine == nil {
		return errNoFile
	}
	return nil
}

// bring brings the memory that a process's GPUs use of its own.
func (r *restore) bring(pid int) error {
	r.mu.Lock()
	t := r.tasks[pid]
	r.mu.Unlock()
	if t == nil || len(t.memory) == 0 {
		return nil
	}
	return touch.Spans(pid, t.memory, r.opts.Stall)
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

// addTask takes a process in, once, and its pidfd over.
func (r *restore) addTask(pid int, pidfd *os.File, memory []touch.Span) (*task, error) {
	end, err := watch(pidfd, func() {})
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	t := &task{pid: pid, end: end, filled: make(chan struct{}), memory: memory}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks[pid] != nil {
		end.stop()
		return nil, fmt.Errorf("process %d has /dev/kfd open twice, which cannot be restored (hint: dump it when only one is open)", pid)
	}
	r.tasks[pid] = t
	return t, nil
}

// finish says, once, how a task's fill ended.
func (r *restore) finish(t *task, report string, err error) {
	r.mu.Lock()
	t.report = report
	if err != nil && r.first == nil {
		r.first = err
	}
	r.mu.Unlock()
	close(t.filled)
}
