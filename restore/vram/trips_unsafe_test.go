package vram

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// trips is how long n requests take that the simulator has nothing to do for, by as many threads as import BOs.
func (r *rig) trips(n int) time.Duration {
	r.t.Helper()
	raw, err := r.plan.Nodes[0].File.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	var wg sync.WaitGroup
	began := time.Now()
	for range maxImports {
		wg.Go(func() {
			if err := raw.Control(func(fd uintptr) {
				for range n / maxImports {
					// DRM_IOCTL_GET_CAP of DRM_CAP_PRIME.
					if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uintptr(abi.DRMIocGetCap),
						uintptr(unsafe.Pointer(&abi.DRMGetCapArgs{Capability: abi.DRMCapPrime}))); errno != 0 {
						r.t.Error(errno)
					}
				}
			}); err != nil {
				r.t.Error(err)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}
