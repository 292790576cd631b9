// Package driver loads NVIDIA's libcuda.so.1 and calls its checkpoint interface,
// without cgo. Only a dynamically linked program can: gpucr-cuda is one.
//
// All methods may be called at once from several goroutines. Each call blocks a
// thread until the driver has done what was asked for, which can take seconds.
package driver

import (
	"errors"
	"fmt"
)

// ErrAbsent is returned when libcuda.so.1 is nowhere to be found.
var ErrAbsent = errors.New("libcuda.so.1 cannot be loaded")

// ErrTooOld is returned when the library lacks the checkpoint interface.
var ErrTooOld = errors.New("libcuda.so.1 has no checkpoint interface")

// Folders that containers and driver installers use outside the loader's path.
var folders = []string{"/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib"}

// Result is a CUresult that is not CUDA_SUCCESS.
type Result struct {
	Code       int
	Name, Text string // "" when the driver knows none
}

func (r *Result) Error() string { return fmt.Sprintf("%s (%s, %d)", r.Text, r.Name, r.Code) }

// Device is a GPU.
type Device struct {
	UUID   [16]byte
	Name   string
	Memory uint64
}

// Pair says which GPU stands in for which; the layout is CUcheckpointGpuPair's.
type Pair struct{ From, To [16]byte }
