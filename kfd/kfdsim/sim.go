package kfdsim

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Sim is a running simulator. Its methods may be called from any goroutine.
type Sim struct {
	opts  Options
	log   *slog.Logger
	gpus  []*gpu
	kfd   *arena // doorbell, event and MMIO pages: what /dev/kfd maps
	watch *watcher
	fuse  *fuse.Server
	dev   atomic.Uint64 // st_dev of the mount
	ctl   *control
	wg    sync.WaitGroup // queues and engines

	recent  refusals
	threads threads

	mu       sync.Mutex
	closed   bool
	lastBO   uint64
	bos      map[uint64]*bo
	garbage  []*bo      // doorbell pages still to be given back by unlock
	wiped    *sync.Cond // memory has been given back, or nothing is left to wipe
	procs    map[int]*kfdProcess
	slots    map[int]*kfdProcess
	lastFile uint64
	files    map[uint64]*openFile
	lastBuf  uint64
	dmabufs  map[uint64]*dmabuf
	tokens   map[uint32]*token // descriptors on their way to a caller
	faults   []*Fault
	gpuErrs  []GPUError
	criuOps  map[string]int // done, by name
}

// gpu is one simulated device.
type gpu struct {
	sim     *Sim
	node    int // in the topology
	cfg     GPU
	model   Model
	arena   *arena
	mmio    *bo
	engines []*engine
	link    link

	vramUsed, gttUsed uint64 // Sim.mu; with VRAM that is still to be wiped
	released          []*bo  // Sim.mu: still to be wiped
	wiping            bool   // Sim.mu: wipe is running
}

// kfdArenaSize is the highest page-aligned size of a file.
const kfdArenaSize = math.MaxInt64 &^ (pageSize - 1)

// renderArenaSize leaves room for offsets that are never used twice.
const renderArenaSize = 1 << 50

// Start makes the machine that opts describe and mounts its device files at
// Dir/dev. The process needs to be root: FUSE passthrough, process_vm_readv
// and pidfd_getfd of other processes all ask for it.
func Start(opts Options) (*Sim, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Sim{
		opts: opts, log: opts.Logger,
		bos: map[uint64]*bo{}, criuOps: map[string]int{}, procs: map[int]*kfdProcess{}, slots: map[int]*kfdProcess{},
		// File numbers tell simulators apart, too.
		files: map[uint64]*openFile{}, lastFile: uint64(rand.Uint32()) << 32, dmabufs: map[uint64]*dmabuf{},
		tokens: map[uint32]*token{},
	}
	s.wiped = sync.NewCond(&s.mu)
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Sim) start() error {
	var err error
	if s.kfd, err = newArena("kfd", kfdArenaSize); err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	if s.watch, err = newWatcher(s.processExited); err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	for i, cfg := range s.opts.GPUs {
		g, err := s.newGPU(i, cfg)
		if err != nil {
			return fmt.Errorf("kfdsim: gpu %d: %w", i, err)
		}
		s.gpus = append(s.gpus, g)
	}
	if err := s.writeTopology(s.SysDir()); err != nil {
		return fmt.Errorf("kfdsim: topology: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.opts.Dir, "enter.sh"), enterScript, 0o755); err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	if err := s.mount(); err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	s.ctl, err = newControl(s, filepath.Join(s.opts.Dir, ControlSocket))
	if err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	return nil
}

func (s *Sim) newGPU(i int, cfg GPU) (*gpu, error) {
	g := &gpu{sim: s, node: s.opts.CPUNodes + i, cfg: cfg, model: cfg.model()}
	g.link.rate = cfg.DMARate
	var err error
	if g.arena, err = newArena(fmt.Sprintf("renderD%d", cfg.RenderMinor), renderArenaSize); err != nil {
		return nil, err
	}
	if cfg.Resident > 0 {
		if err := g.arena.addPool(cfg.Resident); err != nil {
			return nil, err
		}
	}
	off := mmapOffset(mmapMMIO, cfg.ID, 0)
	mem, err := s.kfd.mapRange(off, pageSize)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	g.mmio = s.addBO(&bo{gpu: g, kind: boMMIO, size: pageSize, off: off, mem: mem, noCPU: true})
	s.mu.Unlock()
	for ring := range int(g.model.SDMAEngines) {
		e := newEngine(g, ring)
		g.engines = append(g.engines, e)
		s.wg.Add(1)
		go func() { defer s.wg.Done(); e.run() }()
	}
	return g, nil
}

// Close unmounts the device files and ends all queues and engines. It fails
// while a process holds a device file open; the simulator then goes on, and
// Close may be called again.
func (s *Sim) Close() error {
	if s.fuse != nil {
		if err := s.unmount(); err != nil {
			return err
		}
		s.fuse = nil
	}
	if s.ctl != nil {
		s.ctl.close()
	}
	if s.watch != nil {
		s.watch.close()
	}
	s.mu.Lock()
	s.closed = true
	procs := s.procs
	s.procs = map[int]*kfdProcess{}
	s.unlock()
	for _, p := range procs {
		p.teardown()
	}
	for _, g := range s.gpus {
		for _, e := range g.engines {
			e.close()
		}
	}
	s.wg.Wait()
	for _, g := range s.gpus {
		g.arena.close()
	}
	if s.kfd != nil {
		s.kfd.close()
	}
	s.threads.close()
	return nil
}

// DevDir returns the folder that stands for /dev: kfd and dri/renderD*.
func (s *Sim) DevDir() string { return filepath.Join(s.opts.Dir, "dev") }

// SysDir returns the folder that stands for /sys: class/kfd and dev/char.
func (s *Sim) SysDir() string { return filepath.Join(s.opts.Dir, "sys") }

// Options returns the options as they were completed by Validate.
func (s *Sim) Options() Options { return s.opts }

// gpuByID finds a device by the id that this machine gives it.
func (s *Sim) gpuByID(id uint32) *gpu {
	for _, g := range s.gpus {
		if g.cfg.ID == id {
			return g
		}
	}
	return nil
}

// refuse notes why a request is turned down, and returns errno.
func (s *Sim) refuse(errno syscall.Errno, why string, args ...any) syscall.Errno {
	s.log.Debug("refused: "+why, append(args, "errno", errno)...)
	s.recent.add(fmt.Sprintf("%s (%v)", formatReason(why, args), errno))
	return errno
}

// refusals keeps the last reasons for the control socket.
type refusals struct {
	mu   sync.Mutex
	list []string
}

const keepRefusals = 64

func (r *refusals) add(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == keepRefusals {
		r.list = append(r.list[:0], r.list[1:]...)
	}
	r.list = append(r.list, s)
}

func (r *refusals) snapshot() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.list...)
}

func formatReason(why string, args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch v := args[i+1].(type) {
		case uint64:
			why += fmt.Sprintf(" %v=%#x", args[i], v)
		default:
			why += fmt.Sprintf(" %v=%v", args[i], v)
		}
	}
	return why
}
