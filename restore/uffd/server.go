package uffd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// Server fills the memory of one restore's tasks. Create it with Listen, give
// it to a Supplier as its sink, and run Serve.
type Server struct {
	opts     Options
	log      *slog.Logger
	sock     *socket
	supplier Supplier
	watcher  watcher // nil without a guardian

	connected atomic.Bool // CRIU is there
	// finished: CRIU has restored all tasks, all their memory is registered.
	finished atomic.Bool
	// halted: no event is read any more. stopping: memories are given up, and events read again of those that are left.
	halted   atomic.Bool
	stopping atomic.Bool
	stats    counters

	// mu comes after memory.mu.
	mu    sync.Mutex
	live  []*memory
	ids   uint64 // of memories
	tasks []*process
	whole []*memory // of tasks, complete
	// changed is closed and replaced when live shrinks.
	changed chan struct{}
	poison  []PoisonedRange
	killed  []KilledTask

	finishAt, residentAt time.Time

	runs sync.WaitGroup

	lost  chan struct{}  // has room for the word that a task was killed
	waits sync.WaitGroup // for the end of a CRIU whose tasks were ended
}

// watcher is told which memories are served, by goroutines that hold locks, and which CRIU is to be ended should it
// wait for tasks that were ended: nil when none is any more.
type watcher interface {
	joined(*memory)
	left(*memory)
	watched(criu *process)
}

// ErrRestore is wrapped by Serve's error when CRIU gave the restore up.
var ErrRestore = errors.New("the restore failed")

// Listen makes the socket that CRIU connects to. From then on criu restore
// --lazy-pages may be started.
func Listen(opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	sock, err := listen(opts.Dir)
	if err != nil {
		return nil, err
	}
	return newServer(opts, sock), nil
}

// newServer makes a server of a socket that is there already; the options are valid but for the directory.
func newServer(opts Options, sock *socket) *Server {
	return &Server{opts: opts, log: opts.Logger, sock: sock, changed: make(chan struct{}), lost: make(chan struct{}, 1)}
}

// Close removes the socket and lets the tasks go. Where Serve has ended the tasks it waits for CRIU's end, which it may
// have to bring about. It is not to be called while Serve or Collapse runs.
func (s *Server) Close() error {
	s.waits.Wait()
	for _, p := range s.processes() {
		p.close()
	}
	s.mu.Lock()
	s.tasks, s.whole = nil, nil
	s.mu.Unlock()
	return s.sock.close()
}

// Serve waits for CRIU, serves page faults and returns when all memory is
// resident, the tasks are gone, or the restore failed. When ctx ends before
// CRIU has connected Serve returns; afterwards the tasks depend on it, and
// ending ctx kills them: their missing pages would read as zero.
func (s *Server) Serve(ctx context.Context, supplier Supplier) error {
	s.supplier = supplier
	conn, err := s.sock.accept(ctx)
	if err != nil {
		return err
	}
	if s.watcher != nil {
		s.watcher.watched(conn.criu)
	}
	s.connected.Store(true)
	conn.watch.Go(func() {
		select {
		case <-s.lost:
			s.outlast(conn.criu, conn.left)
		case <-conn.left:
		}
	})
	defer context.AfterFunc(ctx, conn.abort)()

	err = s.receive(conn)
	if err == nil {
		err = s.finish(ctx)
	}
	if err != nil {
		s.halt()
		if errors.Is(err, ErrRestore) {
			s.clearUp(conn)
		}
		s.abandon(err)
	}
	s.runs.Wait()
	criu := conn.leave()
	if err == nil {
		criu.close()
		return nil
	}
	// Not before this returns: CRIU may wait for somebody who waits for the error.
	s.waits.Go(func() {
		s.outlast(criu, nil)
		criu.close()
	})
	return err
}

// outlast waits for the end of a CRIU of which tasks were ended before its end mark, and ends it where it hangs.
func (s *Server) outlast(criu *process, stop <-chan struct{}) {
	killed := outlast(criu, func() bool {
		select {
		case <-stop:
			return true
		default:
			return s.finished.Load()
		}
	})
	if killed {
		s.log.Error(killedCRIU, "pid", criu.pid)
	}
}

// halt ends the reading of events and the filling, and with it all forks: one
// that is under way ends with its process, and no child begins that nobody would
// know of.
func (s *Server) halt() {
	s.halted.Store(true)
	for _, m := range s.memories() {
		m.mu.Lock() // what is being read now comes to its end
		m.unsettled = true
		m.mu.Unlock()
	}
}

// goneTime is how long abandon waits for processes to be gone.
const goneTime = 5 * time.Second

// abandon ends all tasks and what they have forked, as nobody will bring the
// rest of their memory. Preconditions: halt has been called.
func (s *Server) abandon(err error) {
	all := s.processes()
	pids := make([]int, len(all))
	for i, p := range all {
		// None is to see another one die.
		unix.PidfdSendSignal(p.pidfd, unix.SIGSTOP, nil, 0)
		pids[i] = p.pid
	}
	below := descendants(pids)
	processTree().sort(pids)
	for _, pid := range pids {
		i := slices.IndexFunc(all, func(p *process) bool { return p.pid == pid })
		s.killProcess(all[i], err)
		all = slices.Delete(all, i, i+1)
	}
	killTogether(below)
	s.surrender(err, time.Now().Add(goneTime))
}

// surrender lets memories go that no process has any more. Of those that some process still has when it is late, which
// is one that could not be found, the userfaultfd is kept until nothing is missing: what is missing would read as zero.
func (s *Server) surrender(err error, late time.Time) {
	for _, m := range s.memories() {
		for !m.ended() && time.Now().Before(late) {
			time.Sleep(time.Millisecond)
		}
		if m.ended() {
			m.gone.Store(true)
			continue
		}
		s.log.Error("a process that lacks memory does not end, its guardian stays until then", "task", m.name)
		m.refuse(err)
	}
	s.stopping.Store(true)
	for _, m := range s.memories() {
		m.wakeup.set()
	}
}

// wake lets all waiting threads fault again.
func (s *Server) wake() {
	for _, m := range s.memories() {
		m.mu.RLock()
		if !m.closed {
			m.wake()
		}
		m.mu.RUnlock()
	}
}

// receive takes the userfaultfds of all tasks and the word that they are all
// restored. Faults are served from the first one on.
func (s *Server) receive(conn *conn) error {
	for range s.opts.Plan.Tasks {
		pid, task, fd, err := conn.task()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRestore, err)
		}
		if fd < 0 {
			s.log.Debug("zombie", "pid", pid)
			continue
		}
		if err := s.add(pid, task, fd); err != nil {
			return err
		}
	}
	if err := conn.finished(); err != nil {
		return fmt.Errorf("%w: %w", ErrRestore, err)
	}
	s.mu.Lock()
	s.finishAt = time.Now()
	s.mu.Unlock()
	s.finished.Store(true)
	if s.watcher != nil {
		s.watcher.watched(nil)
	}
	return nil
}

// add starts serving a task.
func (s *Server) add(pid int, task *process, fd int) error {
	s.mu.Lock()
	s.tasks = append(s.tasks, task)
	s.mu.Unlock()
	i := slices.IndexFunc(s.opts.Plan.Tasks, func(t PlanTask) bool { return t.PID == pid })
	// Where it fails the descriptor stays open, so that the task waits until it is killed instead of seeing zeros.
	if i < 0 || s.opts.Plan.Tasks[i].Dead {
		return fmt.Errorf(
			"criu restores task %d, which the images do not have; check that both use the same image directory", pid)
	}
	t := &s.opts.Plan.Tasks[i]
	m := &memory{srv: s, fd: fd, id: s.newID(), task: task, name: fmt.Sprint(pid), vmas: t.VMAs, first: t.First,
		space: t.space(len(s.opts.Plan.Files))}
	s.log.Debug("task", "pid", pid, "ranges", len(t.Ranges), "bytes", m.space.left.Load()*pageSize)
	if err := patiently(func() (err error) { m.wakeup, err = newEventFD(); return err }); err != nil {
		return err
	}
	if err := patiently(func() (err error) { m.pagemap, err = openPagemap(task); return err }); err != nil {
		return err
	}
	s.start(m)
	return nil
}

// adopt starts serving a forked child. Preconditions: parent.mu is held for
// writing.
func (s *Server) adopt(parent *memory, fd int) {
	m := &memory{srv: s, fd: fd, name: parent.name + "+", unsettled: true, id: s.newID()}
	// First of all: the child runs already, and nobody else has its descriptor.
	if s.watcher != nil {
		s.watcher.joined(m)
	}
	if m.refused = parent.dropGuarded(); m.refused == nil {
		m.refused = parent.refused
	}
	m.space = parent.space.fork()
	m.parent = parent.task
	if kick, err := newEventFD(); err == nil {
		m.wakeup = kick
	} else {
		// It can do without: of a forked child nothing tells the end, so run looks around every lookPause.
		m.wakeup = &eventFD{-1}
	}
	s.start(m)
}

func (s *Server) newID() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++
	return s.ids
}

func (s *Server) start(m *memory) {
	s.mu.Lock()
	s.live = append(s.live, m)
	s.mu.Unlock()
	// A provider that comes from now on is told of the live ones.
	if s.watcher != nil {
		s.watcher.joined(m)
	}
	s.runs.Add(1)
	go func() {
		defer s.runs.Done()
		if m.run() && m.task != nil {
			s.mu.Lock()
			s.whole = append(s.whole, m)
			s.mu.Unlock()
		}
	}()
}

// left ends the service of a memory whose goroutine returns.
func (s *Server) left(m *memory) {
	m.close()
	if s.watcher != nil {
		s.watcher.left(m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = slices.DeleteFunc(s.live, func(x *memory) bool { return x == m })
	if len(s.live) == 0 && s.finished.Load() {
		s.residentAt = time.Now()
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// finish brings everything that is still missing.
func (s *Server) finish(ctx context.Context) error {
	for _, m := range s.memories() {
		m.demandFirst()
		m.wakeup.set()
	}
	s.supplier.Sweep(s.opts.Plan.Ranges())
	for {
		changed, n := s.serving()
		if n == 0 {
			return nil
		}
		if err := s.drain(ctx); err != nil {
			return err
		}
		// What came before it could be filled in, or was wanted again after
		// an event whose order was in doubt.
		if missing := s.missing(); len(missing) > 0 {
			s.supplier.Refetch(missing)
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serving returns how many address spaces are served, and a channel that is
// closed when one is gone.
func (s *Server) serving() (changed <-chan struct{}, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed, len(s.live)
}

// drain waits until the supplier has brought everything or nobody needs it.
func (s *Server) drain(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var done sync.WaitGroup
	defer done.Wait()
	defer cancel()
	done.Go(func() {
		for {
			changed, n := s.serving()
			if n == 0 {
				cancel()
			}
			select {
			case <-changed:
			case <-inner.Done():
				return
			}
		}
	})
	if err := s.supplier.Drain(inner); err != nil && inner.Err() == nil {
		return err
	}
	return ctx.Err()
}

// missing returns what any address space still lacks.
func (s *Server) missing() []prefetch.Range {
	var all []*piece
	for _, m := range s.memories() {
		m.mu.RLock()
		if m.served() {
			for _, p := range m.space.live.byAddr {
				all = m.space.unfilled(all, p)
			}
		}
		m.mu.RUnlock()
	}
	slices.SortFunc(all, func(a, b *piece) int {
		if a.file != b.file {
			return a.file - b.file
		}
		return cmp(a.off, b.off)
	})
	var out []prefetch.Range
	for _, p := range all {
		if k := len(out) - 1; k >= 0 && out[k].File == p.file && out[k].End() >= p.off {
			out[k].Len = max(out[k].Len, p.offEnd()-out[k].Off)
			continue
		}
		out = append(out, prefetch.Range{File: p.file, Off: p.off, Len: p.size()})
	}
	return out
}

func (s *Server) demand(file int, off int64) {
	s.stats.firstFault.CompareAndSwap(0, time.Now().UnixNano())
	s.supplier.Demand(prefetch.Range{File: file, Off: off, Len: pageSize}, false)
}

func (s *Server) memories() []*memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live)
}

func (s *Server) processes() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tasks)
}

func (s *Server) stopped() bool { return s.stopping.Load() }

// idle reports whether events wait until it is known which memories are left.
func (s *Server) idle() bool { return s.halted.Load() && !s.stopped() }
