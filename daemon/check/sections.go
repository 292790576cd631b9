package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// Least versions. KFD's checkpoint requests came with Linux 5.18; plugins of GPUs need the hooks of CRIU 4.0, and
// nothing here was tried with one before 4.2.
const (
	leastKernelKFD = "5.18"
	leastCRIU      = "4.2"
)

// below compares dotted versions by their numbers; what follows them ("-generic") does not count.
func below(version, least string) bool {
	var a, b [3]int
	fmt.Sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2])
	fmt.Sscanf(least, "%d.%d.%d", &b[0], &b[1], &b[2])
	return slices.Compare(a[:], b[:]) < 0
}

func (s *subject) hasGPUs() bool { return s.gpus != nil && !s.gpus.Empty() }

func kernel(_ context.Context, s *subject, r *Section) error {
	defer userNamespace(s, r)
	if s.Host.Kernel == "" {
		r.unchecked("the release is not known")
		return nil
	}
	r.fact("release %s", s.Host.Kernel)
	if s.hasGPUs() && s.Host.Driver == nil && below(s.Host.Kernel, leastKernelKFD) {
		r.problem(
			"release %s, %s or a later one is needed to restore AMD GPUs (hint: update the kernel)",
			s.Host.Kernel,
			leastKernelKFD,
		)
	}
	return nil
}

func criu(_ context.Context, s *subject, r *Section) error {
	if s.images != nil && len(s.images.Plugins) > 0 {
		r.fact("plugins needed: %s", strings.Join(s.images.Plugins, ", "))
	}
	switch {
	case s.Host.Copy:
		r.unchecked("the version is not known")
	case s.Host.CRIU == "":
		r.problem("criu is not found (hint: install it, or name it with --criu)")
	case s.Host.CRIUVersion == "":
		r.problem("%s is not criu: its --version shows no version of criu", s.Host.CRIU)
	default:
		r.fact("version %s", s.Host.CRIUVersion)
		if below(s.Host.CRIUVersion, leastCRIU) {
			r.problem("version %s, %s or a later one is needed", s.Host.CRIUVersion, leastCRIU)
		}
	}
	return nil
}

// images looks at what is stored: the records of the checkpoint, its chunks, CRIU's images, and the sizes that images
// say of others.
func images(ctx context.Context, s *subject, r *Section) error {
	i := s.c.Info()
	r.fact("%d files, %s", i.Files, humanize.IBytes(uint64(i.Logical)))
	if i.Parent != "" {
		r.fact("an incremental dump: it needs checkpoint %s", i.Parent)
	}
	switch {
	case s.imgErr != nil:
		r.problem("criu's images cannot be read: %v", s.imgErr)
	case s.images == nil:
		r.problem("there are no images of criu")
	default:
		r.fact("criu's format %d, %s, run %s", s.images.ImageVersion, s.images.Arch, dash(s.images.RunID))
		if s.Memory == nil {
			break
		}
		// A restore on demand reads the same, and more closely.
		memory, err := fs.Sub(s.Memory, s.images.Dir)
		if err != nil {
			return err
		}
		if _, err := criuimg.Load(memory); err != nil {
			r.problem("memory cannot be brought on demand: %v", err)
		}
	}
	if s.gpuErr != nil {
		r.problem("amdgpu images cannot be read: %v", s.gpuErr)
	}
	if s.hasGPUs() {
		sub, err := fs.Sub(s.c.FS(), s.gpuDir)
		if err != nil {
			return err
		}
		if err := s.gpus.Verify(sub); err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				r.problem("%s", line)
			}
		}
	}
	if s.Verify == nil {
		r.fact("payload not read")
		return nil
	}
	v, err := s.Verify(ctx)
	if err != nil {
		return err
	}
	for _, p := range v.Problems {
		r.problem("%s", damage(p))
	}
	if len(v.Problems) == 0 {
		r.fact("payload read and sound")
	}
	return nil
}

func damage(p index.Problem) string {
	if p.File == "" {
		return p.Text
	}
	return fmt.Sprintf("%s at %d: %s", p.File, p.Offset, p.Text)
}

func dash(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// xfeatures are the parts of a task's extended state, by their bits in xstate_bv, with the flag of /proc/cpuinfo that
// says a CPU has it. The first two, x87 and SSE, every x86-64 has. Source: Intel SDM volume 1, 13.1.
var xfeatures = map[int]struct{ name, flag string }{
	2: {
		"AVX",
		"avx",
	}, 3: {"MPX", "mpx"}, 4: {"MPX", "mpx"}, 5: {"AVX-512", "avx512f"},
	6: {"AVX-512", "avx512f"}, 7: {"AVX-512", "avx512f"},
	9: {"protection keys", "ospke"}, 17: {"AMX", "amx_tile"}, 18: {"AMX", "amx_tile"},
}

// cpu compares the state in which tasks have their CPU with what the host's CPU can load. What else a program once
// found its CPU to have, CRIU does not record.
func cpu(_ context.Context, s *subject, r *Section) error {
	if s.images == nil {
		r.unchecked("the images do not tell")
		return nil
	}
	if s.images.Arch != "X86_64" {
		r.unchecked("the architecture is %s", s.images.Arch)
		return nil
	}
	used, err := inspect.XState(s.c.FS(), s.images)
	if err != nil {
		r.unchecked("the images do not tell: %v", err)
		return nil
	}
	var names []string
	for bit := range 64 {
		f, known := xfeatures[bit]
		if used&(1<<bit) == 0 || bit < 2 || slices.Contains(names, f.name) {
			continue
		}
		if !known {
			f.name = fmt.Sprintf("state component %d", bit)
		}
		names = append(names, f.name)
		if known && s.Host.CPUFlags != nil && !slices.Contains(s.Host.CPUFlags, f.flag) {
			r.problem("tasks use %s, which this CPU lacks (flag %s of /proc/cpuinfo)", f.name, f.flag)
		}
	}
	r.fact("extended state in use: %s", strings.Join(append([]string{"x87, SSE"}, names...), ", "))
	if s.Host.CPUFlags == nil {
		r.unchecked("the CPU is not known")
	}
	return nil
}

// memory adds up what a restore takes before anybody touches anything: private memory and buffer objects in system
// memory.
func memory(_ context.Context, s *subject, r *Section) error {
	var need uint64
	if s.images != nil {
		need = s.images.Total.Present
	}
	if s.hasGPUs() {
		need += uint64(s.gpus.Summary().GTTBytes)
	}
	r.fact("%s needed", humanize.IBytes(need))
	if s.Host.Available == 0 {
		r.unchecked("what is available is not known")
		return nil
	}
	r.fact("%s available, swap included", humanize.IBytes(uint64(s.Host.Available)))
	if need > uint64(s.Host.Available) {
		r.problem(
			"%s of memory are needed, %s are available",
			humanize.IBytes(need),
			humanize.IBytes(uint64(s.Host.Available)),
		)
	}
	return nil
}

func amdGPUs(_ context.Context, s *subject, r *Section) error {
	set := s.gpus
	if s.gpuErr != nil {
		r.problem("the images cannot be read")
		return nil
	}
	if set == nil {
		set = &image.Set{}
	}
	if s.Host.TopologyProblem != "" && s.hasGPUs() {
		r.problem("the topology cannot be read: %s", s.Host.TopologyProblem)
		return nil
	}
	if s.Host.Copy && s.Host.Topology == nil && s.hasGPUs() {
		r.unchecked("the topology is not known: sys/class/kfd/kfd/topology was not copied")
		return nil
	}
	rep := kfd.Check(set, kfd.Host{Topology: s.Host.Topology, Driver: s.Host.Driver}, s.Settings)
	if s.hasGPUs() {
		switch {
		case s.Host.DriverProblem != "":
			r.problem("the driver does not tell its version: %s", s.Host.DriverProblem)
		case s.Host.Driver != nil:
			r.fact("KFD interface %s", s.Host.Driver)
		case s.Host.Copy:
			r.fact("the driver's version is not known")
		}
	}
	if rep.OK {
		r.Facts = append(r.Facts, rep.Lines()...)
	} else {
		r.Problems = append(r.Problems, rep.Lines()...)
		r.State = Failed
	}
	var err error
	if r.Details, err = json.Marshal(rep); err != nil {
		return err
	}
	return nil
}
