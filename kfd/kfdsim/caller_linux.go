package kfdsim

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Capabilities that the CRIU operations ask for (linux/capability.h).
const (
	capSysAdmin          = 21
	capCheckpointRestore = 40
)

// caller is the thread that issued a request.
type caller struct {
	tid int // in the simulator's pid namespace
}

// procStatus is what /proc/PID/status says of a thread.
type procStatus struct {
	tgid, tracer int
	nspid        []int // of the thread group, from the simulator's namespace inwards
	capEff       uint64
}

func readStatus(tid int) (procStatus, error) {
	var st procStatus
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return st, err
	}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		key, val, ok := strings.Cut(sc.Text(), ":")
		if !ok {
			continue
		}
		val = strings.TrimSpace(val)
		switch key {
		case "Tgid":
			st.tgid, err = strconv.Atoi(val)
		case "TracerPid":
			st.tracer, err = strconv.Atoi(val)
		case "CapEff":
			st.capEff, err = strconv.ParseUint(val, 16, 64)
		case "NStgid":
			for _, f := range strings.Fields(val) {
				n, aerr := strconv.Atoi(f)
				if aerr != nil {
					return st, fmt.Errorf("status of %d: %w", tid, aerr)
				}
				st.nspid = append(st.nspid, n)
			}
		}
		if err != nil {
			return st, fmt.Errorf("status of %d: %w", tid, err)
		}
	}
	if st.tgid == 0 || len(st.nspid) == 0 {
		return st, fmt.Errorf("status of %d: no Tgid or NStgid", tid)
	}
	return st, nil
}

// startTime returns when a process began, in clock ticks since boot. It fails
// for one that has ended, though it may still be a zombie.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name in parentheses may hold anything; state is field 3, the time 22.
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return f[19], nil
}

// mayCheckpoint reports whether the thread has CAP_CHECKPOINT_RESTORE or
// CAP_SYS_ADMIN in the initial user namespace (the simulator's).
func (c caller) mayCheckpoint(st procStatus) bool {
	if st.capEff&(1<<capCheckpointRestore|1<<capSysAdmin) == 0 {
		return false
	}
	theirs, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", c.tid))
	ours, err2 := os.Readlink("/proc/self/ns/user")
	return err1 == nil && err2 == nil && theirs == ours
}

// resolvePID turns a pid of the caller's namespace into one of ours.
func (c caller) resolvePID(pid int) (int, error) {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.tid))
	if err != nil {
		return 0, err
	}
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0, err
	}
	if theirs == ours {
		return pid, nil
	}
	st, err := readStatus(c.tid)
	if err != nil {
		return 0, err
	}
	depth := len(st.nspid) - 1
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		host, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		other, err := readStatus(host)
		if err != nil || len(other.nspid) <= depth || other.nspid[depth] != pid {
			continue
		}
		// The same depth may belong to a sibling namespace.
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", host)); err == nil &&
			(link == theirs || len(other.nspid) > depth+1) {
			return host, nil
		}
	}
	return 0, unix.ESRCH
}

// readUser and writeUser follow a pointer of an ioctl. errno is EFAULT when it
// leads nowhere.
func (c caller) readUser(addr uint64, buf []byte) syscall.Errno {
	if readProcess(c.tid, addr, buf) != nil {
		return syscall.EFAULT
	}
	return 0
}

func (c caller) writeUser(addr uint64, buf []byte) syscall.Errno {
	if writeProcess(c.tid, addr, buf) != nil {
		return syscall.EFAULT
	}
	return 0
}

// iovMax bounds one process_vm call; longer ones are legal but hold the
// target's page tables for long.
const iovMax = 8 << 20

func readProcess(pid int, addr uint64, buf []byte) error {
	return moveProcess(pid, addr, buf, unix.ProcessVMReadv)
}

func writeProcess(pid int, addr uint64, buf []byte) error {
	return moveProcess(pid, addr, buf, unix.ProcessVMWritev)
}

func moveProcess(pid int, addr uint64, buf []byte,
	call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	for len(buf) > 0 {
		n := min(len(buf), iovMax)
		local := []unix.Iovec{{Base: &buf[0], Len: uint64(n)}}
		remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}
		done, err := call(pid, local, remote, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("memory of process %d at %#x: %w", pid, addr, err)
		}
		if done == 0 {
			return fmt.Errorf("memory of process %d at %#x: %w", pid, addr, unix.EFAULT)
		}
		buf, addr = buf[done:], addr+uint64(done)
	}
	return nil
}

// checkUserRange reports whether a process maps all of a range, without file
// mappings when anonOnly is set.
func checkUserRange(pid int, addr, size uint64, anonOnly bool) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	end := addr + size
	if addr == 0 || size == 0 || end < addr {
		return fmt.Errorf("user range %#x+%#x", addr, size)
	}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() && addr < end {
		var lo, hi, off, ino uint64
		var perms, dev string
		if _, err := fmt.Sscanf(sc.Text(), "%x-%x %s %x %s %d", &lo, &hi, &perms, &off, &dev, &ino); err != nil {
			return fmt.Errorf("maps of %d: %w", pid, err)
		}
		if hi <= addr {
			continue
		}
		if lo > addr {
			break
		}
		if anonOnly && ino != 0 {
			return fmt.Errorf("user range of process %d at %#x is a file mapping", pid, addr)
		}
		addr = hi
	}
	if err := sc.Err(); err != nil {
		return err
	}
	if addr < end {
		return fmt.Errorf("user range of process %d is not mapped at %#x", pid, addr)
	}
	return nil
}
