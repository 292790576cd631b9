package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// gpuTraces are what NVIDIA's driver leaves on a process.
type gpuTraces struct {
	library  bool         // libcuda.so is loaded
	nccl     bool         // it has an NCCL communicator
	xla      bool         // XLA's CUDA plugin is loaded, as by JAX
	open     int          // descriptors of /dev/nvidia*
	mappings int          // of such devices
	contexts map[int]bool // minors of the GPUs with a context
	uvm      bool         // a context's mapping of nvidia-uvm
	managed  uint64       // bytes of managed memory
	ipc      []int        // makers of the events of CUDA IPC that it has mapped, as pids of their namespace
}

// managedFrom is the address above which mappings of nvidia-uvm are managed memory. The driver's own lie near
// 0x200000000.
const managedFrom = 1 << 44

// ncclSocket is part of the names of the sockets that NCCL's communicators listen on.
const ncclSocket = "nccl-socket"

func (g *gpuTraces) mapped(m mapping) {
	g.mappings++
	name := strings.TrimPrefix(m.path, "/dev/nvidia")
	switch minor, err := strconv.Atoi(name); {
	case err == nil && m.write && m.shared && m.start < managedFrom:
		if g.contexts == nil {
			g.contexts = map[int]bool{}
		}
		g.contexts[minor] = true
	case name == "-uvm" && m.start >= managedFrom:
		g.managed += m.end - m.start
	case name == "-uvm":
		g.uvm = true
	}
}

// ipcMaker gives who made a file by which processes share events, and memory as PyTorch does:
// /dev/shm/cuda.shm.UID.PID.N, in hexadecimal.
func ipcMaker(path string) (int, bool) {
	rest, ok := strings.CutPrefix(path, "/dev/shm/cuda.shm.")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 {
		return 0, false
	}
	pid, err := strconv.ParseUint(parts[1], 16, 31)
	return int(pid), err == nil
}

func (g *gpuTraces) opened(string) { g.open++ }

func (g *gpuTraces) used() bool { return g.open > 0 || g.mappings > 0 }

// inherited tells a forked child from the one who made the contexts: mappings of nvidia-uvm are not inherited.
func (g *gpuTraces) inherited() bool { return len(g.contexts) > 0 && !g.uvm && g.managed == 0 }

// judgeCUDA looks at who uses NVIDIA's GPUs, and whether the driver can take their state and bring it back.
func (a *family) judgeCUDA(ctx context.Context, r *Report) error {
	var users []*task
	for _, t := range a.tasks {
		if t.gpu.used() || t.gpu.library && a.o.States != nil {
			users = append(users, t)
		}
	}
	if len(users) == 0 {
		return nil
	}
	r.Driver = driverVersion()
	if a.o.NoCUDA {
		return nil
	}
	gpus := listGPUs()
	var own []*task // those whose GPU state it is
	for _, t := range users {
		mine, err := t.judgeCUDA(ctx, a.o)
		if err != nil {
			return err
		}
		if mine {
			own = append(own, t)
		}
	}
	nccl := map[int]bool{} // GPUs that NCCL's processes use
	for _, t := range own {
		for minor := range t.gpu.contexts {
			if t.gpu.nccl {
				nccl[minor] = true
			}
			g := slices.IndexFunc(gpus, func(g GPU) bool { return g.Minor == minor })
			if g < 0 {
				gpus = append(gpus, GPU{Minor: minor})
				g = len(gpus) - 1
			}
			gpus[g].Processes = append(gpus[g].Processes, t.pid)
		}
	}
	for _, t := range own {
		if err := t.judgeSeveralGPUs(len(nccl) > 1); err != nil && !gone(err) {
			return err
		}
	}
	var used []string
	for _, g := range gpus {
		if len(g.Processes) > 0 {
			r.GPUs = append(r.GPUs, g)
			used = append(used, strings.TrimSpace(fmt.Sprintf("/dev/nvidia%d %s", g.Minor, g.UUID)))
		}
	}
	if len(used) > 0 {
		d := &details{}
		for _, u := range used {
			d.add(u)
		}
		a.tasks[0].found[kindGPUs] = d
	}
	return nil
}

// judgeCUDA looks at one process, and tells whether it has GPU state of its own.
func (t *task) judgeCUDA(ctx context.Context, o *Options) (bool, error) {
	inherited := func() {
		t.add(kindInherited, "%d descriptors, %d mappings", t.gpu.open, t.gpu.mappings)
	}
	if o.States == nil {
		if t.gpu.inherited() {
			inherited()
			return false, nil
		}
		if o.Driver != nil {
			t.add(kindCUDADriver, "%v", o.Driver)
		}
	} else {
		s, err := o.States(ctx, t.pid)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil && !t.gpu.used():
			return false, nil // it has the library only
		case err != nil:
			if _, gone := os.Stat(t.path()); gone != nil {
				return false, nil
			}
			t.add(kindCUDAState, "%v", err)
			return false, nil
		case !s.Known && t.gpu.used():
			inherited()
			return false, nil
		case !s.Known:
			return false, nil
		case s.Failed:
			t.add(kindCUDAState, "its state is %s", s.Name)
		case s.Name != "running":
			t.add(kindSuspended, "%s", s.Name)
		}
	}
	self := strconv.Itoa(t.pid)
	if n := len(t.nspids); n > 0 {
		self = t.nspids[n-1]
	}
	for _, maker := range t.gpu.ipc {
		if strconv.Itoa(maker) != self {
			t.add(kindIPC, "of process %d", maker)
		}
	}
	if t.gpu.managed > 0 {
		t.add(kindManaged, "%d MiB", max(t.gpu.managed>>20, 1))
	}
	return true, nil
}

func minors(set map[int]bool) string {
	var names []string
	for _, m := range slices.Sorted(maps.Keys(set)) {
		names = append(names, "/dev/nvidia"+strconv.Itoa(m))
	}
	return strings.Join(names, ", ")
}

// driverVersion is that of NVIDIA's kernel module, "" without one.
func driverVersion() string {
	text, err := os.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// listGPUs reads what NVIDIA's driver tells of its GPUs, ordered by minor.
func listGPUs() []GPU {
	paths, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	var gpus []GPU
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			continue
		}
		g := GPU{Minor: -1}
		err = eachField(f, func(name, value string) {
			switch name {
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					g.Minor = n
				}
			case "GPU UUID":
				g.UUID = value
			case "Model":
				g.Model = value
			}
		})
		if err = errors.Join(err, f.Close()); err == nil && g.Minor >= 0 {
			gpus = append(gpus, g)
		}
	}
	slices.SortFunc(gpus, func(a, b GPU) int { return a.Minor - b.Minor })
	return gpus
}
