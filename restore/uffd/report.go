package uffd

import (
	"slices"
	"sync/atomic"
	"time"
)

type counters struct {
	faults, zeroFaults, events atomic.Int64
	copied, zeroed, poisoned   atomic.Int64
	firstFault                 atomic.Int64 // unix ns
	huge                       atomic.Int64
}

// Report is what a server has done. Bytes count each address space they were
// put into.
type Report struct {
	// Faults were reported by the kernel; ZeroFaults of them were for pages
	// without contents. Events are forks, mremaps, munmaps and madvises.
	Faults, ZeroFaults, Events int64
	CopiedBytes, ZeroBytes     int64
	PoisonedBytes              int64
	Poisoned                   []PoisonedRange
	Killed                     []KilledTask
	// MissingBytes are still to come.
	MissingBytes int64
	// HugeBytes were made huge pages by Collapse, as the tasks had asked.
	HugeBytes int64
	// FirstFault is when the first fault with contents was read, Finished
	// when CRIU had restored all tasks, Resident when no process lacked
	// memory any more. Zero when not yet.
	FirstFault, Finished, Resident time.Time
}

// Report returns what has been done so far.
func (s *Server) Report() Report {
	r := Report{
		Faults: s.stats.faults.Load(), ZeroFaults: s.stats.zeroFaults.Load(), Events: s.stats.events.Load(),
		CopiedBytes: s.stats.copied.Load(), ZeroBytes: s.stats.zeroed.Load(), PoisonedBytes: s.stats.poisoned.Load(),
		HugeBytes: s.stats.huge.Load(),
	}
	if t := s.stats.firstFault.Load(); t != 0 {
		r.FirstFault = time.Unix(0, t)
	}
	for _, m := range s.memories() {
		r.MissingBytes += m.space.left.Load() * pageSize
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Finished, r.Resident = s.finishAt, s.residentAt
	r.Poisoned, r.Killed = slices.Clone(s.poison), slices.Clone(s.killed)
	return r
}
