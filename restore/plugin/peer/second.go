package peer

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/restore/plugin/coming"
	"github.com/gpucr/gpucr-fs/restore/server/wire"
)

// A process that runs before its GPU memory is there needs somebody who brings it,
// or ends it. That is the peer; the second is there for a peer that is killed.
// The peer hands it pidfds, and takes them back when queues run. With them comes the
// file of package coming, so that its locks last as long as either.
//
//	Resume   pid; fds: its pidfd, the file of locks -> OK
//	Resumed  pid, which needs nobody any more. No answer.
//	Bye      all are well. No answer.

// Watch is what the second does: it ends the processes that a peer leaves
// without a goodbye.
func Watch(c *wire.Conn, log *slog.Logger, tell func(Event)) error {
	defer c.Close()
	watched, locks := map[uint32]*watched{}, map[uint32]*os.File{}
	defer func() {
		for _, f := range locks {
			f.Close()
		}
		for _, w := range watched {
			if w != nil {
				w.stop()
			}
		}
	}()
	for {
		m, files, err := c.Receive()
		if err == nil && m.Type == wire.Resume && len(files) == 2 && watched[m.PID] == nil {
			locks[m.PID] = files[1]
			if watched[m.PID], err = watch(files[0], func() {}); err == nil {
				err = answer(c, wire.OK, "", nil)
			}
			if err == nil {
				continue
			}
		} else {
			closeAll(files)
		}
		switch {
		case err != nil:
			for pid, w := range watched {
				if w != nil {
					endUnready(w, int(pid), fmt.Errorf("who brought it was killed"), log, tell)
				}
			}
			return nil
		case m.Type == wire.Resumed:
			if w := watched[m.PID]; w != nil {
				w.stop()
				locks[m.PID].Close()
			}
			delete(watched, m.PID)
			delete(locks, m.PID)
		case m.Type == wire.Bye:
			return nil
		default:
			return fmt.Errorf("message %d to a second: %w", m.Type, wire.ErrProtocol)
		}
	}
}

// endUnready ends a process whose GPU memory does not come, unless it has ended.
func endUnready(w *watched, pid int, why error, log *slog.Logger, tell func(Event)) {
	if w.gone() {
		return
	}
	// It is told first: criu may fail because the process is gone, and whoever started criu looks for the reason.
	tell(Event{PID: pid, Why: why.Error()})
	log.Error("process ended: the rest of its GPU memory did not come", "pid", pid, "err", why)
	if err := w.kill(); err != nil {
		log.Error("it cannot be ended: its queues stand still for good", "pid", pid, "err", err)
	}
}

// second is this process's end of the connection to its second.
type second struct {
	start func() (*wire.Conn, <-chan struct{}, error)
	log   *slog.Logger

	mu      sync.Mutex
	conn    *wire.Conn
	ended   <-chan struct{}
	pending map[int][]*os.File // by pid: its pidfd and the file of locks
	begun   int
	bye     bool
}

// maxSeconds bounds how often a second that is killed has a successor.
const maxSeconds = 8

func newSecond(start func() (*wire.Conn, <-chan struct{}, error), log *slog.Logger) *second {
	return &second{start: start, log: log, pending: map[int][]*os.File{}}
}

// secondWait is how long a second may take to answer.
const secondWait = 10 * time.Second

// begin starts the second, and another when it is killed.
func (s *second) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil || s.bye {
		return nil
	}
	if s.begun++; s.begun > maxSeconds {
		return fmt.Errorf("a second was started %d times and did not stay", maxSeconds)
	}
	conn, ended, err := s.start()
	if err != nil {
		return fmt.Errorf("start a second: %w", err)
	}
	s.conn, s.ended = conn, ended
	for pid, files := range s.pending {
		if err := s.hand(pid, files); err != nil {
			conn.Close()
			s.conn = nil
			<-ended
			return err
		}
	}
	go func() {
		<-ended
		s.mu.Lock()
		conn.Close()
		again := s.conn == conn && !s.bye
		if again {
			s.conn = nil
		}
		s.mu.Unlock()
		if again {
			if err := s.begin(); err != nil {
				s.log.Warn("nobody ends processes without GPU memory should this one be killed", "err", err)
			}
		}
	}()
	return nil
}

// hand gives the second a process. Preconditions: s.mu is held, and there is a second.
func (s *second) hand(pid int, files []*os.File) error {
	if err := s.conn.Send(&wire.Message{Type: wire.Resume, PID: uint32(pid)}, files...); err != nil {
		return fmt.Errorf("second: %w", err)
	}
	s.conn.Until(time.Now().Add(secondWait))
	m, sent, err := s.conn.Receive()
	closeAll(sent)
	if err == nil && m.Status != 0 {
		err = fmt.Errorf("%s", m)
	}
	if err != nil {
		return fmt.Errorf("second: %w", err)
	}
	return nil
}

// add hands a process over, before it runs.
func (s *second) add(t *task, locks *os.File) error {
	if err := s.begin(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || t.end.pidfd == nil {
		return fmt.Errorf("second: %w", os.ErrClosed)
	}
	files := []*os.File{t.end.pidfd, locks}
	err := s.hand(t.pid, files)
	if err == nil {
		s.pending[t.pid] = files
	}
	return err
}

// remove takes a process back. It is before the end of the task's own watch.
func (s *second) remove(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, t.pid)
	if s.conn != nil {
		s.conn.Send(&wire.Message{Type: wire.Resumed, PID: uint32(t.pid)}) // one that is killed has a successor
	}
}

// close lets the second go and waits for its end.
func (s *second) close() {
	s.mu.Lock()
	s.bye = true
	conn, ended := s.conn, s.ended
	if conn != nil {
		conn.Send(&wire.Message{Type: wire.Bye}) // the close says it, too, when nothing is left
	}
	s.mu.Unlock()
	if conn != nil {
		<-ended
	}
}

// endAbandoned ends the processes of others whose helper and second were killed.
func endAbandoned(path string, log *slog.Logger, ended func(Event)) {
	err := coming.EndAbandoned(path, func(pid int) {
		log.Error("process ended: the rest of its GPU memory did not come", "pid", pid, "err", coming.ErrAbandoned)
		ended(Event{PID: pid, Why: coming.ErrAbandoned.Error()})
	})
	if err != nil {
		log.Warn("processes whose GPU memory does not come may stand still", "err", err)
	}
}
