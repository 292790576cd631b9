package kfdsim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// State is a look at the whole simulator.
type State struct {
	GPUs      []GPUState     `json:"gpus"`
	Processes []ProcessState `json:"processes"`
	// Errors are what GPUs ran into, Refusals why requests were turned down,
	// the last ones of each.
	Errors   []GPUError `json:"errors"`
	Refusals []string   `json:"refusals"`
	// CRIUOps are how often each operation of CRIU's has succeeded.
	CRIUOps map[string]int `json:"criu_ops"`
}

// GPUState is one device.
type GPUState struct {
	ID          uint32   `json:"id"`
	Model       string   `json:"model"`
	RenderMinor int      `json:"render_minor"`
	VRAMUsed    uint64   `json:"vram_used"`
	VRAM        uint64   `json:"vram"`
	GTTUsed     uint64   `json:"gtt_used"`
	DMA         DMAStats `json:"dma"`
}

// ProcessState is one process that uses the KFD.
type ProcessState struct {
	PID       int `json:"pid"`
	BOs       int `json:"bos"`
	Events    int `json:"events"`
	Evictions int `json:"evictions"` // reasons for which its queues stand still
	// Missing is how many bytes a RESTORE has made that nobody has filled yet,
	// with Options.CheckFills.
	Missing uint64       `json:"missing"`
	Queues  []QueueState `json:"queues"`
}

// QueueState is one queue; Done counts packets (AQL) or bytes (SDMA).
type QueueState struct {
	ID     uint32 `json:"id"`
	GPU    uint32 `json:"gpu"`
	Done   uint64 `json:"done"`
	Failed string `json:"failed,omitempty"`
}

// State returns the present state.
func (s *Sim) State() State {
	st := State{Refusals: s.recent.snapshot()}
	s.mu.Lock()
	for _, g := range s.gpus {
		st.GPUs = append(st.GPUs, GPUState{ID: g.cfg.ID, Model: g.cfg.Model, RenderMinor: g.cfg.RenderMinor,
			VRAMUsed: g.vramUsed, VRAM: g.cfg.VRAM, GTTUsed: g.gttUsed, DMA: g.link.stats(g.cfg.ID, false)})
	}
	queues := map[int][]*queue{}
	for pid, p := range s.procs {
		ps := ProcessState{PID: pid, Events: len(p.events.byID), Evictions: p.evictions}
		for _, d := range p.pdds {
			ps.BOs += len(d.mem)
			for _, m := range d.mem {
				ps.Missing += m.bo.missing.bytes()
			}
		}
		queues[pid] = p.sortedQueues()
		st.Processes = append(st.Processes, ps)
	}
	st.Errors, st.CRIUOps = slices.Clone(s.gpuErrs), maps.Clone(s.criuOps)
	s.unlock()
	slices.SortFunc(st.Processes, func(a, b ProcessState) int { return a.PID - b.PID })
	for i := range st.Processes {
		for _, q := range queues[st.Processes[i].PID] {
			done, failed := q.settle()
			qs := QueueState{ID: q.id, GPU: q.pdd.gpu.cfg.ID, Done: done}
			if failed != nil {
				qs.Failed = failed.Error()
			}
			st.Processes[i].Queues = append(st.Processes[i].Queues, qs)
		}
	}
	return st
}

// DMAStats returns the account of every GPU's SDMA engines, and starts a new
// one if reset is set.
func (s *Sim) DMAStats(reset bool) []DMAStats {
	var out []DMAStats
	for _, g := range s.gpus {
		out = append(out, g.link.stats(g.cfg.ID, reset))
	}
	return out
}

// SetDMARate changes the rate of a GPU's link, in bytes per second; gpuID 0 is
// all of them, rate 0 no limit.
func (s *Sim) SetDMARate(gpuID uint32, rate float64) error {
	found := false
	for _, g := range s.gpus {
		if gpuID == 0 || g.cfg.ID == gpuID {
			g.link.setRate(rate)
			found = true
		}
	}
	if !found || rate < 0 {
		return fmt.Errorf("kfdsim: dma rate %g for gpu %#x", rate, gpuID)
	}
	return nil
}

// restoreTime is how long the driver waits until it brings back what it has evicted.
const restoreTime = 100 * time.Millisecond

// pressure evicts the processes that have VRAM of a GPU. Preconditions: Sim.mu is held.
func (s *Sim) pressure(g *gpu) {
	for _, p := range s.procs {
		has := false
		for _, d := range p.pdds {
			for _, m := range d.mem {
				has = has || m.bo.kind == boVRAM && m.bo.gpu == g
			}
		}
		if has {
			p.evictions++ // for who looks now
			s.wg.Go(func() {
				time.Sleep(restoreTime)
				p.unevict()
			})
		}
	}
}

// Evict takes a process's queues off the GPUs for some time, as the driver does
// when its memory must move. It returns when they may run again.
func (s *Sim) Evict(pid int, d time.Duration) error {
	s.mu.Lock()
	p := s.procs[pid]
	s.unlock()
	if p == nil {
		return fmt.Errorf("kfdsim: process %d does not use the kfd", pid)
	}
	p.evict()
	time.Sleep(d)
	p.unevict()
	return nil
}

// BOInfo is one allocation of a process.
type BOInfo struct {
	PID    int    `json:"pid"`
	GPU    uint32 `json:"gpu"` // of this machine
	UserID uint32 `json:"user_gpu_id"`
	Handle int    `json:"handle"`
	VA     uint64 `json:"va"`
	Size   uint64 `json:"size"`
	Flags  uint32 `json:"flags"`
	Kind   string `json:"kind"`
	Offset uint64 `json:"offset"` // for mmap
	// Object is the same for allocations that share memory.
	Object uint64 `json:"object"`
	// Hash is HashWords of the contents of VRAM and GTT, if asked for.
	Hash uint64 `json:"hash,omitempty"`
}

// BOs lists the allocations of all processes, by process, GPU and handle; with
// hash, their contents as the GPU sees them. Queues keep running meanwhile.
func (s *Sim) BOs(hash bool) []BOInfo {
	s.mu.Lock()
	var out []BOInfo
	var held []*bo
	for pid, p := range s.procs {
		for _, d := range p.pdds {
			for _, m := range d.sortedMem() {
				out = append(out, BOInfo{PID: pid, GPU: d.gpu.cfg.ID, UserID: d.userID, Handle: m.handle, VA: m.va,
					Size: m.bo.size, Flags: m.flags, Kind: m.bo.kind.String(), Offset: m.bo.off, Object: m.bo.id})
				held = append(held, m.bo.get())
			}
		}
	}
	s.unlock()
	for i, b := range held {
		if hash && (b.kind == boVRAM || b.kind == boGTT) {
			out[i].Hash = HashWords(0, b.mem)
		}
	}
	s.mu.Lock()
	s.putList(held)
	s.unlock()
	slices.SortStableFunc(out, func(a, b BOInfo) int { return a.PID - b.PID })
	return out
}
