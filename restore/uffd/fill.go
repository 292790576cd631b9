package uffd

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// copyBytes bounds one UFFDIO_COPY. Reading a fault or an event waits for the
// copies in flight, at 3 GB/s 0.3 ms; but copies of 256 KiB took 0.45 s of
// processor time a gigabyte where those of 2 MiB took 0.3. While there are faults
// the runs are shorter anyway.
const copyBytes = 1 << 20

// fillPause bounds how long a filler waits before it tries again what the
// kernel refused because of an event.
const fillPause = 500 * time.Microsecond

// enomemTimeout is how long a filler waits for the kernel to find memory.
const enomemTimeout = 30 * time.Second

// filler puts the n bytes that belong at file offset off at addr; it returns
// like uffdCopy.
type filler func(fd int, addr uint64, off, n int64) (int64, unix.Errno)

// Take gives the server the contents of ranges: all address spaces that still
// lack them get them. It is part of prefetch.Sink.
func (s *Server) Take(parts []prefetch.Part) {
	for _, p := range parts {
		if p.Data == nil {
			s.zero(p.Range)
			continue
		}
		s.fill(p.Range, p.Data)
	}
}

func (s *Server) fill(r prefetch.Range, data []byte) {
	n := s.fillAll(r, func(fd int, addr uint64, off, n int64) (int64, unix.Errno) {
		at := off - r.Off
		return uffdCopy(fd, addr, data[at:at+n])
	})
	s.stats.copied.Add(n)
}

func (s *Server) zero(r prefetch.Range) {
	n := s.fillAll(r, func(fd int, addr uint64, _, n int64) (int64, unix.Errno) {
		return uffdZero(fd, addr, n)
	})
	s.stats.zeroed.Add(n)
}

// Fail tells the server that a range cannot be read: the pages are poisoned, so that a process that touches one gets
// SIGBUS. It is part of prefetch.Sink.
func (s *Server) Fail(r prefetch.Range, err error) {
	n := s.fillAll(r, func(fd int, addr uint64, _, n int64) (int64, unix.Errno) {
		return uffdPoison(fd, addr, n)
	})
	if n > 0 {
		s.poisoned(r, n, err)
	}
}

// AlreadyDelivered checks whether a process has lost a range that was delivered before it was demanded. It is part of
// prefetch.Sink.
func (s *Server) AlreadyDelivered(r prefetch.Range) {
	for _, m := range s.memories() {
		if m.lacks(r) {
			s.supplier.Demand(r, true)
			return
		}
	}
}

// lacks reports whether some of a range is missing, and is brought now.
func (m *memory) lacks(r prefetch.Range) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, _, n := m.space.next(r.File, r.Off, r.End())
	return n > 0 && m.served()
}

// fillAll fills a range in every address space and returns how many bytes that
// was. Children forked meanwhile are among them.
func (s *Server) fillAll(r prefetch.Range, fill filler) (filled int64) {
	seen := make(map[*memory]bool)
	for again := true; again; {
		again = false
		for _, m := range s.memories() {
			if !seen[m] {
				seen[m], again = true, true
				filled += m.fill(r, fill)
			}
		}
	}
	return filled
}

// fill fills what the space lacks of a range.
func (m *memory) fill(r prefetch.Range, fill filler) (filled int64) {
	limit := int64(copyBytes)
	pause := 10 * time.Microsecond
	var starved time.Time
	for off := r.Off; off < r.End(); {
		n, next, errno := m.fillSome(r, off, limit, fill)
		filled += n
		off = next
		if n > 0 || errno == 0 {
			limit, pause, starved = copyBytes, 10*time.Microsecond, time.Time{}
		}
		switch errno {
		case 0:
		case unix.EAGAIN:
			time.Sleep(pause)
			pause = min(2*pause, fillPause)
		case unix.ENOENT:
			// Part of the run is in another mapping, or in none.
			limit = max(min(limit, r.End()-off)/2, pageSize) &^ (pageSize - 1)
		case unix.ENOMEM:
			if starved.IsZero() {
				starved = time.Now()
			} else if time.Since(starved) > enomemTimeout {
				m.srv.kill(m, fmt.Errorf("no memory for its pages for %v", enomemTimeout))
				return filled
			}
			time.Sleep(10 * time.Millisecond)
		case unix.ESRCH:
			m.setGone()
			return filled
		default:
			m.srv.kill(m, fmt.Errorf("fill its memory: %w", errno))
			return filled
		}
	}
	return filled
}

// fillSome makes one attempt at the first pages from off on that the space
// lacks, at most limit bytes. It returns how much it filled, where to go on,
// and why it stopped, if there is something to do about it.
func (m *memory) fillSome(r prefetch.Range, off, limit int64, fill filler) (filled, next int64, errno unix.Errno) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.served() {
		return 0, r.End(), 0
	}
	if m.unsettled {
		return 0, off, unix.EAGAIN
	}
	addr, at, n := m.space.next(r.File, off, r.End())
	if n == 0 {
		return 0, r.End(), 0
	}
	n, guarded, errno := m.pagemap.unguarded(addr, min(n, limit))
	if errno != 0 {
		return 0, at, errno
	}
	if guarded > 0 {
		m.space.markDone(r.File, at, guarded)
		m.checkComplete()
		return 0, at + guarded, 0
	}
	filled, errno = fill(m.fd, addr, at, n)
	errno = found(m.fd, errno)
	if filled > 0 {
		m.space.markDone(r.File, at, filled)
		m.checkComplete()
		return filled, at + filled, 0
	}
	switch {
	case errno == unix.EEXIST:
		// Filled by another thread or provider. The task that waits may not know.
		m.space.markDone(r.File, at, pageSize)
		uffdWake(m.fd, addr, pageSize)
		m.checkComplete()
		return 0, at + pageSize, 0
	case errno == unix.ENOENT && n == pageSize && !m.srv.finished.Load():
		// Not registered yet.
		return 0, at + pageSize, 0
	case errno == unix.ENOENT && n == pageSize:
		// All events are in and no mapping is left here.
		m.space.markDone(r.File, at, pageSize)
		uffdWake(m.fd, addr, pageSize)
		m.checkComplete()
		return 0, at + pageSize, 0
	}
	return 0, at, errno
}

// served reports whether what the memory lacks is brought to it now. Preconditions: mu is held for reading.
func (m *memory) served() bool {
	return !m.closed && !m.gone.Load() && m.refused == nil && !m.lacking.Load()
}

// checkComplete lets run look whether the memory is complete. Preconditions:
// mu is held for reading.
func (m *memory) checkComplete() {
	if m.space.left.Load() == 0 {
		m.wakeup.set()
	}
}

func (m *memory) setGone() {
	m.gone.Store(true)
	m.wakeup.set()
}

// dropGuarded gives up what the process has put guard pages over, before somebody
// inherits it. Preconditions: mu is held for writing.
func (m *memory) dropGuarded() error {
	ps := m.space.live.byAddr
	if m.pagemap == nil || len(ps) == 0 {
		return nil
	}
	for at, end := ps[0].start, ps[len(ps)-1].end; at < end; {
		var from, to uint64
		err := patiently(func() error {
			var errno unix.Errno
			if from, to, errno = m.pagemap.guard(at, end); errno != 0 {
				return errno
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("look for guard pages: %w", err)
		}
		m.space.forget(m.space.live.take(from, to, nil))
		at = max(to, at+pageSize)
	}
	return nil
}
