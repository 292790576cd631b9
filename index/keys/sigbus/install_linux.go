//go:build amd64

package sigbus

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelAction is struct kernel_sigaction of x86-64 (arch/x86/include/uapi/asm/signal.h).
type kernelAction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// onBus is the handler; assembly, never called from Go.
//
//lint:ignore U1000 the assembly defines it, and go vet holds the two together
func onBus()

// onBusPC gives its address.
func onBusPC() uintptr

// install puts onBus in front of Go's handler, with the flags, mask and restorer that Go chose: it runs on Go's signal
// stacks.
func install() error {
	var old kernelAction
	if err := sigaction(nil, &old); err != nil {
		return err
	}
	next = old.handler
	old.handler = onBusPC()
	return sigaction(&old, nil)
}

func sigaction(set, old *kernelAction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGBUS), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(old)), 8, 0, 0)
	if errno != 0 {
		return fmt.Errorf("rt_sigaction(SIGBUS): %w", errno)
	}
	return nil
}
