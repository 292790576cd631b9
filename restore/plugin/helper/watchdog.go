package helper

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/restore/plugin/pending"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
)

// A process may run before its GPU memory is there. The helper then brings the memory,
// or ends the process. The watchdog ends it when the helper is killed.
// The helper hands it pidfds, and takes them back when queues run. With them comes the
// file of package pending, so that its locks last as long as either.
//
//	Resume   pid; fds: its pidfd, the file of locks -> OK
//	Resumed  pid, which needs nobody any more. No answer.
//	Bye      all are well. No answer.

// Watch is what the watchdog does: it ends the processes that a helper leaves
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
			return fmt.Errorf("message %d to a watchdog: %w", m.Type, wire.ErrProtocol)
		}
	}
}

// endUnready ends a process whose GPU memory does not come, unless it has ended.
func endUnready(w *watched, pid int, why error, log *slog.Logger, tell func(Event)) {
	if w.gone() {
		return
	}
	// It is told first: criu may fail because the process is gone, and the command that started criu reports why.
	tell(Event{PID: pid, Why: why.Error()})
	log.Error("process ended: the rest of its GPU memory did not come", "pid", pid, "err", why)
	if err := w.kill(); err != nil {
		log.Error("it cannot be ended: its queues stand still for good", "pid", pid, "err", err)
	}
}

// watchdog is this process's end of the connection to its watchdog.
type watchdog struct {
	start func() (*wire.Conn, <-chan struct{}, error)
	log   *slog.Logger

	mu      sync.Mutex
	conn    *wire.Conn
	ended   <-chan struct{}
	pending map[int][]*os.File // by pid: its pidfd and the file of locks
	begun   int
	bye     bool
}

// maxWatchdogs bounds how often a watchdog that is killed has a successor.
const maxWatchdogs = 8

func newWatchdog(start func() (*wire.Conn, <-chan struct{}, error), log *slog.Logger) *watchdog {
	return &watchdog{start: start, log: log, pending: map[int][]*os.File{}}
}

// watchdogWait is how long a watchdog may take to answer.
const watchdogWait = 10 * time.Second

// begin starts the watchdog, and another when it is killed.
func (s *watchdog) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil || s.bye {
		return nil
	}
	if s.begun++; s.begun > maxWatchdogs {
		return fmt.Errorf("a watchdog was started %d times and did not stay", maxWatchdogs)
	}
	conn, ended, err := s.start()
	if err != nil {
		return fmt.Errorf("start a watchdog: %w", err)
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

// hand gives the watchdog a process. Preconditions: s.mu is held, and there is a watchdog.
func (s *watchdog) hand(pid int, files []*os.File) error {
	if err := s.conn.Send(&wire.Message{Type: wire.Resume, PID: uint32(pid)}, files...); err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	s.conn.Until(time.Now().Add(watchdogWait))
	m, sent, err := s.conn.Receive()
	closeAll(sent)
	if err == nil && m.Status != 0 {
		err = fmt.Errorf("%s", m)
	}
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return nil
}

// add hands a process over, before it runs.
func (s *watchdog) add(t *task, locks *os.File) error {
	if err := s.begin(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || t.end.pidfd == nil {
		return fmt.Errorf("watchdog: %w", os.ErrClosed)
	}
	files := []*os.File{t.end.pidfd, locks}
	err := s.hand(t.pid, files)
	if err == nil {
		s.pending[t.pid] = files
	}
	return err
}

// remove takes a process back. It is before the end of the task's own watch.
func (s *watchdog) remove(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, t.pid)
	if s.conn != nil {
		s.conn.Send(&wire.Message{Type: wire.Resumed, PID: uint32(t.pid)}) // one that is killed has a successor
	}
}

// close lets the watchdog go and waits for its end.
func (s *watchdog) close() {
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

// endAbandoned ends the processes of others whose helper and watchdog were killed.
func endAbandoned(path string, log *slog.Logger, ended func(Event)) {
	err := pending.EndAbandoned(path, func(pid int) {
		log.Error("process ended: the rest of its GPU memory did not come", "pid", pid, "err", pending.ErrAbandoned)
		ended(Event{PID: pid, Why: pending.ErrAbandoned.Error()})
	})
	if err != nil {
		log.Warn("processes whose GPU memory does not come may stand still", "err", err)
	}
}
