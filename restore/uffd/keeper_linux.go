package uffd

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// keeper is a process that shares the guardian's table of descriptors, as a thread would, and outlives it. The kernel
// hands the userfaultfd of a forked child to the process that reads the event, and lets the child run: is the reader
// killed right then its descriptors are closed, and without the last one of its memory the child would go on with pages
// of zeros. While there is a keeper they stay open. It does nothing until the guardian is dead; then it ends the
// guardian's connections, which is how the provider learns of it, and waits for the provider to take the userfaultfds
// over and end it (heldFDs). When nobody does it kills the tasks it was told of and stays until none of the memory is
// left.
type keeper struct {
	pid   int
	end   func() // ends it; further calls do nothing
	tasks []int32
	known atomic.Int32 // how many of tasks are set
}

const (
	// keeperName is what ps shows.
	keeperName = "gpucr-keeper"
	// keeperTimeout is how long the keeper waits to be relieved, in seconds.
	keeperTimeout = 2
	// keeperLook is how often it looks whether memory is left, in nanoseconds.
	keeperLook = 100e6
	// keeperFDs bounds the descriptors that are looked at, firstFD is the one
	// after standard error: those before belong to the process that started the guardian.
	keeperFDs, firstFD = 1 << 16, 3
	// keeperTasks bounds the tasks it knows of.
	keeperTasks = 1 << 14
)

// keeping is the keeper's memory: it may not allocate.
type keeping struct {
	args     []byte // the command line
	name     [len(keeperName) + 1]byte
	tasks    []int32     // pidfds, 0 for none; shared with the guardian
	guardian unix.PollFd // handle of the guardian
	timeout  unix.Timespec
	look     unix.Timespec
	probe    argFill
	wake     argRange
	clone    argClone // all zero without a cgroup
}

// argClone is struct clone_args of linux/sched.h.
type argClone struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// startKeeper makes the calling process's keeper.
func startKeeper() (*keeper, error) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	shared, err := unix.Mmap(-1, 0, 4*keeperTasks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		unix.Close(self)
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	tasks := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(shared))), keeperTasks)
	k := &keeping{
		args:     procfs.CommandLine(),
		tasks:    tasks,
		guardian: unix.PollFd{Fd: int32(self), Events: unix.POLLIN},
		timeout:  unix.Timespec{Sec: keeperTimeout},
		probe:    argFill{argRange: argRange{pageSize, pageSize}},
		wake:     argRange{pageSize, pageSize},
	}
	copy(k.name[:], keeperName)
	pid, errno := forkKeeperApart(k)
	if errno != 0 {
		unix.Munmap(shared)
		unix.Close(self)
		return nil, fmt.Errorf("start the keeper: %w", errno)
	}
	return &keeper{pid: pid, tasks: tasks, end: sync.OnceFunc(func() {
		unix.Kill(pid, unix.SIGKILL)
		for err := error(unix.EINTR); err == unix.EINTR; {
			_, err = unix.Wait4(pid, nil, 0, nil)
		}
	})}, nil
}

// task tells the keeper of a task by its pidfd, which is to stay open as long as
// there is a keeper.
func (k *keeper) task(pidfd int) {
	if i := int(k.known.Add(1)) - 1; i < len(k.tasks) {
		atomic.StoreInt32(&k.tasks[i], int32(pidfd))
	}
}

// forkKeeperApart has the keeper begin in a cgroup of its own, in this process's where
// that is not possible. The process that started this one met with the same, and said so.
func forkKeeperApart(k *keeping) (pid int, errno syscall.Errno) {
	for range cgroupTries {
		dir, err := openCgroup(cgroupKeepers)
		if err != nil {
			break
		}
		k.clone = argClone{flags: unix.CLONE_FILES | unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD),
			cgroup: uint64(dir.Fd())}
		pid, errno = forkKeeper(k)
		dir.Close()
		if errno == 0 {
			return pid, 0
		}
		if errno != unix.ENODEV {
			break
		}
	}
	k.clone = argClone{}
	return forkKeeper(k)
}

// forkKeeper returns twice like fork(2), but not in the keeper. That one is a copy
// of a single thread of this process: it can use nothing of Go's runtime, not even
// a larger stack, and takes no signals.
//
//go:norace
//go:nosplit
func forkKeeper(k *keeping) (pid int, errno syscall.Errno) {
	const all = ^uint64(0)
	block, before := uint64(all), uint64(0)
	runtime.LockOSThread()
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&block)),
		uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	// Sandboxes may refuse the newer call.
	call, a, b := uintptr(unix.SYS_CLONE), uintptr(unix.CLONE_FILES)|uintptr(unix.SIGCHLD), uintptr(0)
	if k.clone.flags != 0 {
		call, a, b = unix.SYS_CLONE3, uintptr(unsafe.Pointer(&k.clone)), unsafe.Sizeof(k.clone)
	}
	r, _, errno := syscall.RawSyscall6(call, a, b, 0, 0, 0, 0)
	if r != 0 || errno != 0 {
		syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&before)), 0, 8, 0, 0)
		runtime.UnlockOSThread()
		return int(r), errno
	}
	// A kill of the guardian's process group or session does not reach it.
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&k.name)), 0, 0, 0, 0)
	for i := range k.args {
		k.args[i] = 0
		if i < len(keeperName) {
			k.args[i] = k.name[i]
		}
	}
	for k.guardian.Revents == 0 {
		syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&k.guardian)), 1, 0, 0, 0, 0)
	}
	for fd := uintptr(firstFD); fd < keeperFDs; fd++ {
		syscall.RawSyscall(unix.SYS_SHUTDOWN, fd, unix.SHUT_RDWR, 0)
	}
	syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, uintptr(unsafe.Pointer(&k.timeout)), 0, 0, 0)
	for left := true; left; {
		left = false
		for _, fd := range k.tasks {
			if fd > 0 {
				syscall.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), uintptr(unix.SIGKILL), 0, 0, 0, 0)
			}
		}
		for fd := uintptr(firstFD); fd < keeperFDs; fd++ {
			// Only a userfaultfd takes this, whatever has become of its memory.
			if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, fd, ioctlWake, uintptr(unsafe.Pointer(&k.wake))); e == 0 {
				_, _, e = syscall.RawSyscall(unix.SYS_IOCTL, fd, ioctlContinue, uintptr(unsafe.Pointer(&k.probe)))
				left = left || e != unix.ESRCH
			}
		}
		k.look = unix.Timespec{Nsec: keeperLook} // the kernel counts it down
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, uintptr(unsafe.Pointer(&k.look)), 0, 0, 0)
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
