package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
)

// server is the restore server, a thread in CRIU, as it is seen from here. Tasks attach
// to it; it asks here for plans and tells how fills have ended.
type server struct {
	link *wire.Conn

	mu    sync.Mutex
	known map[uint32]*served // by its number
	ended bool
}

// served is a process that the server restores.
type served struct {
	task    *task
	p       image.Process
	gpus    []kfd.GPUPair
	lazy    []bool
	buckets *shared // of RESTORE, which a task completes
	bosAt   uint64

	dmabufs  []*os.File // those that are wanted here
	restored chan struct{}
	filled   chan struct{}
	text     string // how the fill went, when filled is closed
	err      error
}

func newServer(link *wire.Conn) *server { return &server{link: link, known: map[uint32]*served{}} }

// find gives a process that the server names.
func (s *server) find(number uint32) *served {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[number]
}

// serveServer takes what the server asks and tells, until CRIU ends.
func (r *restore) serveServer() {
	for {
		m, files, err := r.server.link.Receive()
		if err != nil {
			break
		}
		if err := r.fromServer(m, files); err != nil {
			r.opts.Logger.Error("a word of the restore server", "err", err)
		}
	}
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.server.ended = true
	for _, s := range r.server.known {
		s.end("", errServerEnded)
	}
}

var errServerEnded = errors.New("criu has ended")

// add takes in a process.
func (s *server) add(number uint32, p *served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[number] = p; s.ended {
		p.end("", errServerEnded)
	}
}

// fill says how the server's part of a fill ended.
func (s *server) fill(p *served, text string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.end(text, err)
}

// end says, once, how the server's part of a fill ended. Preconditions: server.mu is held.
func (s *served) end(text string, err error) {
	select {
	case <-s.filled:
		return
	default:
	}
	s.text, s.err = text, err
	close(s.filled)
}

// fromServer deals with one message.
func (r *restore) fromServer(m *wire.Message, files []*os.File) error {
	if (m.Type == wire.File || m.Type == wire.Mapping) && len(files) == 1 {
		c, err := wire.NewConn(files[0])
		if err != nil {
			return err
		}
		r.track(c)
		r.wg.Go(func() {
			defer r.untrack(c)
			if err := r.serveFirst(c, m); err != nil && r.ctx.Err() == nil {
				r.opts.Logger.Error("restore of a task's device", "err", err)
			}
		})
		return nil
	}
	s := r.server.find(m.ID)
	if s == nil {
		closeAll(files)
		return fmt.Errorf("message %d about a process that is none: %w", m.Type, wire.ErrProtocol)
	}
	switch {
	case m.Type == wire.BOs && place(s.dmabufs, m, files):
		return nil
	case m.Type == wire.Restored:
		close(s.restored)
	case m.Type == wire.Filled && m.Status == 0:
		r.server.fill(s, m.String(), nil)
	case m.Type == wire.Filled:
		r.server.fill(s, "", errors.New(m.String()))
	case m.Type == wire.Again:
		r.wg.Go(func() {
			if err := r.sendPlan(m.ID, s, true); err != nil {
				r.opts.Logger.Warn("a fill that was cut off is not begun anew", "err", err)
			}
		})
	default:
		closeAll(files)
		return fmt.Errorf("message %d of the restore server: %w", m.Type, wire.ErrProtocol)
	}
	return nil
}

// serveFirst answers a task whose first message came with its connection.
func (r *restore) serveFirst(c *wire.Conn, m *wire.Message) error {
	select {
	case <-r.ready:
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
	number := m.Minor
	if m.Type == wire.File && r.err == nil {
		if p := r.processOf(int(m.ID)); p != nil && m.NumDevices <= wire.MaxGPUs {
			err := r.plan(c, number, *p, m.GPUs[:m.NumDevices])
			if !errors.Is(err, errAnswered) {
				return err
			}
			return r.take(number)
		}
	}
	if m.Type == wire.File {
		if err := r.take(number); err != nil {
			return err
		}
	}
	if err := r.fromTask(c, m, nil); err != nil {
		return err
	}
	return r.serveTask(c)
}

// take tells the server that a task is dealt with here.
func (r *restore) take(number uint32) error {
	m := &wire.Message{Type: wire.Taken, ID: number}
	if r.err == nil && r.hasObjects() {
		m.Count = 1
	}
	return r.server.link.Send(m)
}

// hasObjects tells whether there is more to do before RESUME than fills.
func (r *restore) hasObjects() bool { return len(r.objects.of) > 0 }

// errAnswered says that a task knows why it is not restored.
var errAnswered = errors.New("the task was told")

// plan gives the server the plan of a process, and the task its buffers.
func (r *restore) plan(c *wire.Conn, number uint32, p image.Process, visible []uint32) error {
	refuse := func(err error) error { return errors.Join(errAnswered, answer(c, wire.OK, "", err)) }
	gpus, err := r.gpus(p, visible)
	if err != nil {
		return refuse(err)
	}
	mem, m, err := restoreBuffers(p, gpus)
	if err != nil {
		return refuse(err)
	}
	pid, pidfd, err := c.Peer()
	if err != nil {
		mem.close()
		return refuse(err)
	}
	t, err := r.addTask(pid, pidfd, &p)
	if err != nil {
		mem.close()
		return refuse(err)
	}
	s := &served{task: t, p: p, gpus: gpus, lazy: r.lazyBOs(p), buckets: mem, bosAt: m.BOs,
		dmabufs: make([]*os.File, len(p.Message.Bos)), restored: make(chan struct{}), filled: make(chan struct{})}
	r.server.add(number, s)
	r.wg.Go(func() { r.follow(s) })
	if err := restoreThunkMemory(pid, t.end, p.Message.GetSharedMemSize(), p.Message.GetSharedMemMagic()); err != nil {
		r.opts.Logger.Warn("the runtime's shared memory is not restored", "err", err)
	}
	if err := r.sendPlan(number, s, false); err != nil {
		r.server.fill(s, "", err)
		return nil // the server tells the task
	}
	return c.Send(m, mem.file)
}

// sendPlan gives the server the plan of a process, with a connection to the filler.
func (r *restore) sendPlan(number uint32, s *served, again bool) error {
	m := &wire.Message{Type: wire.Plan, ID: number, PID: s.p.Message.GetPid(), NumBOs: uint32(len(s.p.Message.Bos))}
	mem, a, err := r.makeServerPlan(s, again)
	var files []*os.File
	if err == nil {
		defer mem.close()
		m.Size, files = uint64(len(mem.mem)), append(files, mem.file)
		if a.Conn != nil {
			defer a.Conn.Close()
			files = append(files, a.Conn)
		}
		if len(s.task.memory) > 0 || s.lazy != nil || r.hasObjects() {
			m.Count = 1
		}
		if r.opts.Sequential {
			m.First = 1
		}
	}
	if a.Serve != nil {
		r.wg.Go(func() { a.Serve(r.work) })
	}
	return errors.Join(err, reply(r.server.link, m, "", err, files...))
}

// makeServerPlan writes down what the server has filled, and announces that.
func (r *restore) makeServerPlan(s *served, again bool) (mem *shared, a Announced, err error) {
	minor := func(gpu uint32) uint32 { return pair(s.gpus, gpu).RenderMinor }
	plan, err := makePlan(s.p.Message, s.p.Layout, nil, minor)
	if err != nil {
		return nil, a, err
	}
	defer plan.close()
	now, _ := plan.split(s.lazy)
	if len(now.BOs) > 0 {
		if a, err = r.announcer(r.ctx, now, r.fillOptions(), again); err != nil {
			return nil, a, err
		}
	}
	var wanted []uint32
	shared := r.objects.shared(s.p)
	for i := range s.p.Message.Bos {
		if shared[i] || s.lazy != nil && s.lazy[i] {
			wanted = append(wanted, uint32(i))
		}
	}
	b := wire.AppendPacket(nil, wanted, nil)
	for _, p := range a.Packets {
		b = wire.AppendPacket(b, p.BOs, p.Bytes)
	}
	if mem, err = newShared(uint64(len(b))); err == nil {
		copy(mem.mem, b)
	}
	return mem, a, err
}

// follow brings what may follow a process, when the server has what must be there.
func (r *restore) follow(s *served) {
	defer s.buckets.close()
	defer closeAll(s.dmabufs)
	text, err := r.followUp(s)
	r.finish(s.task, text, err)
}

func (r *restore) followUp(s *served) (string, error) {
	select {
	case <-s.restored:
	case <-s.filled:
	}
	select {
	case <-s.restored:
	default:
		r.objects.restored(s.p, nil, s.err)
		return "", s.err
	}
	r.objects.restored(s.p, s.dmabufs, nil)
	if s.lazy == nil {
		<-s.filled
		return s.text, s.err
	}
	minor := func(gpu uint32) uint32 { return pair(s.gpus, gpu).RenderMinor }
	buckets, err := s.buckets.slice(s.bosAt, boBucket*uint64(len(s.p.Message.Bos)))
	if err != nil {
		return "", err
	}
	later, err := extents(buckets, s.lazy, minor)
	if err != nil {
		return "", err
	}
	plan, err := makePlan(s.p.Message, s.p.Layout, nil, minor)
	if err != nil {
		return "", err
	}
	defer plan.close()
	_, rest := plan.split(s.lazy)
	for i := range rest.BOs {
		bo := &rest.BOs[i]
		if bo.Dmabuf = s.dmabufs[bo.Index]; bo.Dmabuf == nil {
			return "", noHandle(*bo)
		}
	}
	turn := r.turns.newTurn(rest, idle(r.dir(), s.p))
	defer r.turns.done(turn)
	ctx, stop := s.task.work(r.work)
	defer stop()
	if <-s.filled; s.err != nil {
		return "", s.err
	}
	r.markCPUReady(s.task, fmt.Sprintf("%s; %d follow", s.text, len(rest.BOs)), later)
	rep, err := r.fillPart(ctx, rest, turn.after(ctx, s.task.ran, headStart(rest)))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; then %s", s.text, rep), nil
}
