package uffd

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// PoisonedRange is memory that could not be read: touching it raises SIGBUS.
type PoisonedRange struct {
	File     string
	Off, Len int64
	Reason   string
}

// KilledTask is a process that could not be given its memory.
type KilledTask struct {
	// PID as seen from here.
	PID    int
	Reason string
}

func (s *Server) poisoned(r prefetch.Range, n int64, err error) {
	p := PoisonedRange{s.opts.Plan.Files[r.File], r.Off, n, err.Error()}
	s.log.Error("memory cannot be read, touching it will raise SIGBUS", "file", p.File, "offset", p.Off, "bytes", n,
		"err", err)
	s.stats.poisoned.Add(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poison = append(s.poison, p)
}

// kill ends a process whose memory cannot be made right. A forked child's pid
// is not known: all it lacks is poisoned, and should that fail too its faults
// are left waiting. So it is with a process that shares the memory of a task,
// when that is dead.
func (s *Server) kill(m *memory, err error) {
	if m.task != nil {
		s.killProcess(m.task, err)
		select {
		case s.lost <- struct{}{}:
		default:
		}
	}
	m.refuse(err)
	m.poisonLacking()
}

// refuse gives a memory nothing any more. Its reports are read as before: who has it is to go on until it touches what
// is missing.
func (m *memory) refuse(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.task == nil {
		m.srv.log.Error("a forked child cannot be given its memory", "task", m.name, "err", err)
	}
	m.refused = err
}

// poisonLacking poisons what a refused memory lacks, as far as it can be done now: not while a report is outstanding
// that will still be read, nor while its task ends, for which it would take memory and time.
func (m *memory) poisonLacking() {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed || m.refused == nil || m.unsettled && !m.gone.Load() || m.task != nil && !m.exited.Load() {
		return
	}
	for _, p := range m.space.live.byAddr {
		for _, u := range m.space.unfilled(nil, p) {
			if !m.poison(u) {
				return
			}
		}
	}
}

// poison poisons a run of pages that are not done, and reports whether it could. Preconditions: mu is held for reading.
func (m *memory) poison(u *piece) bool {
	for at := u.start; at < u.end; {
		n, errno := uffdPoison(m.fd, at, int64(u.end-at))
		if n == 0 && errno == unix.ENOENT {
			// Part of it is in another mapping, or in none.
			n, errno = uffdPoison(m.fd, at, pageSize)
			errno = found(m.fd, errno)
		}
		switch {
		case n > 0:
		case errno == unix.EEXIST || errno == unix.ENOENT:
			n = pageSize // something is there, or nothing can be
		default:
			return false
		}
		m.space.markDone(u.file, u.off+int64(at-u.start), n)
		at += uint64(n)
	}
	return true
}

func (s *Server) killProcess(p *process, err error) {
	if e := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); e != nil {
		if e != unix.ESRCH {
			s.log.Error("cannot kill a task that lacks memory", "pid", p.pid, "err", e)
		}
		return
	}
	s.log.Error("killed a task that lacks memory", "pid", p.pid, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = append(s.killed, KilledTask{p.pid, err.Error()})
}

// Nothing is left when two looks at this distance find nothing: what a task that
// is being killed forks just then shows after the first.
const lookAgain = 10 * time.Millisecond

// clearUp kills what a CRIU that has given up, or was killed, may leave of the tasks it was restoring. It only stops
// the tasks that have come to us: abandon ends them. It kills their children. When the tasks do not have a pid
// namespace of their own, it also kills each process that has the pid of a task and still runs CRIU's program, with its
// children: CRIU forks some tasks from helpers that the images do not have. A process that is dying shows no
// program any more.
func (s *Server) clearUp(c *conn) {
	var known []int
	for _, p := range s.processes() {
		if unix.PidfdSendSignal(p.pidfd, unix.SIGSTOP, nil, 0) == nil {
			known = append(known, p.pid)
		}
	}
	late := time.Now().Add(goneTime)
	for empty := 0; empty < 2; {
		left := s.stillRestored(c)
		left = append(left, descendants(slices.Concat(left, known))...)
		left = slices.DeleteFunc(left,
			func(pid int) bool { return slices.Contains(known, pid) || procfs.Program(pid) == "" })
		switch {
		case len(left) == 0:
			empty++
			time.Sleep(lookAgain)
		case time.Now().After(late):
			s.log.Error("processes of a restore that failed do not go away", "pids", left)
			return
		default:
			empty = 0
			killTogether(left)
			time.Sleep(time.Millisecond)
		}
	}
}

// stillRestored returns the processes that have the pids of tasks and run CRIU's
// program; none when that is not known, or when another CRIU is restoring them:
// the caller may have tried again already, or tries the same twice.
func (s *Server) stillRestored(c *conn) []int {
	tasks := s.opts.Plan.Tasks
	if c.exe == "" || !c.samePIDs || slices.ContainsFunc(tasks, func(t PlanTask) bool { return t.PID == 1 }) {
		return nil
	}
	var up int
	err := patiently(func() (err error) { up, err = parentOf(tasks[0].PID); return err })
	if err != nil || up > 0 && up != c.criu.pid && procfs.Program(up) == c.exe {
		return nil
	}
	var found []int
	for _, t := range tasks {
		if procfs.Program(t.PID) == c.exe {
			found = append(found, t.PID)
		}
	}
	return found
}
