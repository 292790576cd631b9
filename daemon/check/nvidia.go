package check

import (
	"context"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// NVIDIA is what NVIDIA's driver tells of a host.
type NVIDIA struct {
	Driver  string      `json:"driver,omitempty"` // version of the kernel's module, "580.159.04"
	CUDA    int         `json:"cuda"`             // version of its interface, 13000 for 13.0
	GPUs    []NVIDIAGPU `json:"gpus"`
	Problem string      `json:"problem,omitempty"` // why the driver cannot be asked; the rest is empty then
}

// NVIDIAGPU is one of its GPUs.
type NVIDIAGPU struct {
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	Memory uint64 `json:"memory"` // bytes
}

// nvidiaGPUs looks at the host's driver. Which GPUs the processes had only the driver knows; it says so when it
// restores them.
func nvidiaGPUs(_ context.Context, s *subject, r *Section) error {
	used, version, err := false, "", error(nil)
	if s.images != nil && s.images.Dir == "." {
		used, version, err = criuimg.CUDA(s.c.FS())
	}
	if err != nil {
		r.problem("the images cannot be read: %v", err)
		return nil
	}
	if !used {
		r.fact("the processes do not use CUDA")
	}
	h := s.Host.NVIDIA
	switch {
	case h == nil && s.Host.Copy:
		if used {
			r.unchecked("the processes use CUDA; NVIDIA's driver there is not known")
		}
		return nil
	case h == nil && used:
		r.problem("the processes use CUDA, and this machine has no NVIDIA driver")
		return nil
	case h == nil:
		r.fact("this machine has no NVIDIA driver")
		return nil
	case h.Problem != "" && used:
		r.problem("the processes use CUDA, and NVIDIA's driver cannot be asked: %s", h.Problem)
		return nil
	case h.Problem != "":
		r.fact("NVIDIA's driver cannot be asked: %s", h.Problem)
		return nil
	}
	name := h.Driver
	if name == "" {
		name = "of an unknown version"
	}
	r.fact("driver %s, CUDA %d.%d, %d GPUs", name, h.CUDA/1000, h.CUDA%1000/10, len(h.GPUs))
	for _, g := range h.GPUs {
		r.fact("  %s %s, %s", g.UUID, g.Name, humanize.IBytes(g.Memory))
	}
	switch {
	case used && len(h.GPUs) == 0:
		r.problem("the processes use CUDA, and this machine has no GPU for them")
	case used && version != "" && h.Driver != "" && version != h.Driver:
		r.problem(
			"the processes have the libraries of driver %s mapped, this machine has %s: criu needs the very same files",
			version,
			h.Driver,
		)
	case used:
		r.fact("the processes use CUDA")
	}
	return nil
}
