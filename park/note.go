package park

import "github.com/gpucr/gpucr-fs/park/inject"

// Note is what is to be known of a parked process when it is restored.
type Note struct {
	PID   int         `json:"pid"` // in its own pid namespace
	Held  inject.Held `json:"held"`
	Rings []NoteRing  `json:"rings"`
}

// NoteRing is a ring that a process makes anew.
type NoteRing struct {
	FD     int    `json:"fd"`
	Params params `json:"params"`
}

// Innermost is a process's pid in its own namespace.
func Innermost(pid int) int { return inject.Innermost(pid) }

// params is struct io_uring_params.
type params struct {
	SQEntries, CQEntries, Flags, ThreadCPU, ThreadIdle, Features, WQ uint32
	Resv                                                             [3]uint32
	SQ                                                               sqOffsets
	CQ                                                               cqOffsets
}

type sqOffsets struct {
	Head, Tail, RingMask, RingEntries, Flags, Dropped, Array, Resv uint32
	UserAddr                                                       uint64
}

type cqOffsets struct {
	Head, Tail, RingMask, RingEntries, Overflow, CQEs, Flags, Resv uint32
	UserAddr                                                       uint64
}
