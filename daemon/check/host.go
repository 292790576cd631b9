package check

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// Host is what is known of the machine to restore on. What is not known is empty; a section that needs it says that it
// could not look.
type Host struct {
	// Copy says that this is not the machine asked, but files copied from one.
	Copy        bool     `json:"copy,omitempty"`
	Kernel      string   `json:"kernel,omitempty"`       // release, as uname -r
	CRIU        string   `json:"criu,omitempty"`         // path
	CRIUVersion string   `json:"criu_version,omitempty"` // "4.2.1"
	CPUFlags    []string `json:"cpu_flags,omitempty"`    // of /proc/cpuinfo
	UserFaults  string   `json:"user_faults,omitempty"`  // sysctl vm.unprivileged_userfaultfd: "0" or "1"
	// Available is the memory in bytes that can be had, swap included; 0: not known.
	Available int64 `json:"available,omitempty"`

	Topology        *topology.System   `json:"topology,omitempty"` // of AMD GPUs
	TopologyProblem string             `json:"topology_problem,omitempty"`
	Driver          *kfd.DriverVersion `json:"driver,omitempty"`
	DriverProblem   string             `json:"driver_problem,omitempty"`

	NVIDIA *NVIDIA `json:"nvidia,omitempty"` // nil without NVIDIA's driver
}

// ReadHost describes this machine, or, with dir, the one whose files were copied there: a topology directory, or a root
// directory with sys/class/kfd/kfd/topology and, as far as wanted, proc/sys/kernel/osrelease, proc/cpuinfo and
// proc/meminfo. The caller adds criu and the NVIDIA GPUs.
func ReadHost(dir string) (Host, error) {
	h := Host{Copy: dir != ""}
	root := dir
	if root == "" {
		root = "/"
	}
	if _, err := os.Stat(root); err != nil {
		return h, err
	}
	fsys := os.DirFS(root)
	if b, err := fs.ReadFile(fsys, "proc/sys/kernel/osrelease"); err == nil {
		h.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := fs.ReadFile(fsys, "proc/sys/vm/unprivileged_userfaultfd"); err == nil {
		h.UserFaults = strings.TrimSpace(string(b))
	}
	h.CPUFlags = cpuFlags(fsys)
	h.Available = available(fsys)
	var err error
	h.Topology, err = topology.Parse(fsys)
	switch {
	case errors.Is(err, topology.ErrNoKFD) && h.Copy && h.Kernel == "" && h.CPUFlags == nil && h.Available == 0:
		return h, err // nothing of a host is there: a mistaken path
	case errors.Is(err, topology.ErrNoKFD):
	case err != nil:
		h.TopologyProblem = err.Error()
	}
	if !h.Copy && h.Topology != nil {
		v, err := kfd.ReadDriverVersion(kfd.DevicePath)
		if err != nil {
			h.DriverProblem = err.Error()
		} else {
			h.Driver = &v
		}
	}
	return h, nil
}

// lines calls f for the "NAME : VALUE" lines of a file until it returns false.
func lines(fsys fs.FS, name string, f func(key, value string) bool) {
	file, err := fsys.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && !f(strings.TrimSpace(key), strings.TrimSpace(value)) {
			return
		}
	}
}

// cpuFlags gives those of the first processor: the kernel shows what all of them have.
func cpuFlags(fsys fs.FS) (flags []string) {
	lines(fsys, "proc/cpuinfo", func(key, value string) bool {
		if key == "flags" {
			flags = strings.Fields(value)
		}
		return flags == nil
	})
	return flags
}

func available(fsys fs.FS) (sum int64) {
	lines(fsys, "proc/meminfo", func(key, value string) bool {
		if key == "MemAvailable" || key == "SwapFree" {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 53)
			sum += kib << 10
		}
		return true
	})
	return sum
}
