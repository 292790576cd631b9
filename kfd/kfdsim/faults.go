package kfdsim

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Fault makes something go wrong: the first After matching events pass, then
// Count of them (0: all) fail.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// GPU restricts the fault to one gpu_id; 0 is any.
	GPU   uint32 `json:"gpu,omitempty"`
	After int    `json:"after,omitempty"`
	Count int    `json:"count,omitempty"`
	// Request and Errno belong to FaultIoctl: the request's name, as
	// abi.Request.String gives it, for CRIU_OP alone or with an operation
	// ("AMDKFD_IOC_CRIU_OP CHECKPOINT"; "RESTORE bound" is one that fails halfway, when
	// the process has its address spaces), and the error number.
	Request string        `json:"request,omitempty"`
	Errno   syscall.Errno `json:"errno,omitempty"`
	// Delay belongs to FaultStall, and to FaultIoctl: how long the request takes until it fails. ClearFaults ends it:
	// what waits then goes on as if there had been no fault.
	Delay time.Duration `json:"delay_ns,omitempty"`

	seen, hit int
	cleared   chan struct{} // closed by ClearFaults
}

// FaultKind names what goes wrong.
type FaultKind string

// Kinds of faults.
const (
	// FaultIoctl makes a request fail before it does anything: a transient
	// EBUSY of DRM_IOCTL_AMDGPU_CS, say.
	FaultIoctl FaultKind = "ioctl"
	// FaultDMA makes a submission hang: its fence gets ETIME, its context is
	// guilty from then on.
	FaultDMA FaultKind = "dma"
	// FaultStall delays a submission.
	FaultStall FaultKind = "stall"
	// FaultMapping makes GEM_VA succeed without mapping anything, so that the
	// next access through it faults.
	FaultMapping FaultKind = "mapping"
)

// Inject adds a fault.
func (s *Sim) Inject(f Fault) error {
	switch f.Kind {
	case FaultIoctl:
		if f.Request == "" || f.Errno == 0 {
			return errors.New("kfdsim: ioctl fault without request or errno")
		}
	case FaultStall:
		if f.Delay <= 0 {
			return errors.New("kfdsim: stall fault without delay")
		}
	case FaultDMA, FaultMapping:
	default:
		return fmt.Errorf("kfdsim: no fault of kind %q", f.Kind)
	}
	if f.After < 0 || f.Count < 0 {
		return errors.New("kfdsim: fault with a negative count")
	}
	s.mu.Lock()
	defer s.unlock()
	f.cleared = make(chan struct{})
	s.faults = append(s.faults, &f)
	return nil
}

// Struck tells how often the faults that are there have struck, also those that delay something still.
func (s *Sim) Struck() (n int) {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range s.faults {
		n += f.hit
	}
	return n
}

// ClearFaults removes all faults and reports how often they struck.
func (s *Sim) ClearFaults() int {
	s.mu.Lock()
	defer s.unlock()
	n := 0
	for _, f := range s.faults {
		n += f.hit
		close(f.cleared)
	}
	s.faults = nil
	return n
}

// wait takes as long as the fault delays, and tells whether the fault is still there then.
func (f *Fault) wait() bool {
	if f.Delay == 0 {
		return true
	}
	t := time.NewTimer(f.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.cleared:
		return false
	}
}

// strike finds the fault an event meets. Preconditions: Sim.mu is held.
func (s *Sim) strike(kind FaultKind, gpu uint32, request string) *Fault {
	for _, f := range s.faults {
		if f.Kind != kind || f.GPU != 0 && f.GPU != gpu || kind == FaultIoctl && f.Request != request {
			continue
		}
		if f.seen++; f.seen <= f.After || f.Count > 0 && f.hit == f.Count {
			continue
		}
		f.hit++
		return f
	}
	return nil
}

func (s *Sim) injected(request string, file *openFile) syscall.Errno {
	s.mu.Lock()
	var gpu uint32
	if file.drm != nil {
		gpu = file.drm.gpu.cfg.ID
	}
	f := s.strike(FaultIoctl, gpu, request)
	s.unlock()
	if f == nil || !f.wait() {
		return 0
	}
	return s.refuse(f.Errno, "injected fault", "request", request)
}

func (s *Sim) injectedDMA(g *gpu) error {
	s.mu.Lock()
	stall := s.strike(FaultStall, g.cfg.ID, "")
	hang := s.strike(FaultDMA, g.cfg.ID, "")
	s.unlock()
	if stall != nil {
		stall.wait()
	}
	if hang != nil {
		return errors.New("injected dma error")
	}
	return nil
}

// injectedMapping reports whether a mapping gets lost. Preconditions: Sim.mu
// is held.
func (s *Sim) injectedMapping(g *gpu) bool { return s.strike(FaultMapping, g.cfg.ID, "") != nil }

// GPUError is something a GPU ran into: a fault of an access, a packet it does
// not know, an injected error.
type GPUError struct {
	Time  time.Time `json:"time"`
	GPU   uint32    `json:"gpu"`
	PID   int       `json:"pid"`
	Where string    `json:"where"` // "queue" or "sdma"
	What  string    `json:"what"`
}

const keepGPUErrors = 256

// noteGPUError records an error. Preconditions: Sim.mu is held.
func (s *Sim) noteGPUError(g *gpu, pid int, where string, err error) {
	s.log.Warn("gpu error", "gpu", g.cfg.ID, "pid", pid, "where", where, "err", err)
	if len(s.gpuErrs) == keepGPUErrors {
		s.gpuErrs = append(s.gpuErrs[:0], s.gpuErrs[1:]...)
	}
	s.gpuErrs = append(s.gpuErrs, GPUError{Time: time.Now(), GPU: g.cfg.ID, PID: pid, Where: where, What: err.Error()})
}
