package restore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// adopt makes this process the parent of processes that CRIU leaves, or takes that back.
func adopt(on bool) error {
	var v uintptr
	if on {
		v = 1
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, v, 0, 0, 0))
}

// endOrphans ends the processes that a CRIU which did not do its work has forked and left, with all below them, and
// waits for them: those by which it tried out the kernel, each of which may wait for it for ever, and the tasks it was
// making, or had made and not told of. Programs that CRIU started, and action scripts, are adopted as well and left
// alone: they end by themselves, or are meant to stay. So is whoever began before since, CRIU's begin: the first
// process of a container adopts all. parent is who has adopted them.
func endOrphans(parent int, since uint64, end func(pid int) error) error {
	const (
		again = 10 * time.Millisecond // a fork that was under way shows a little later
		limit = 5 * time.Second
	)
	late := time.Now().Add(limit)
	for quiet := 0; quiet < 2; {
		left, err := forks(parent, since)
		switch {
		case err != nil && time.Now().Before(late):
			quiet = 0
			time.Sleep(again)
			continue
		case err != nil:
			return fmt.Errorf("look for processes that criu has left: %w", err)
		case len(left) == 0:
			quiet++
			time.Sleep(again)
			continue
		case time.Now().After(late):
			return fmt.Errorf("processes %v, which criu has left, do not end", left)
		}
		quiet = 0
		for _, pid := range left {
			if err := end(pid); err != nil {
				return err
			}
			// A process that does not end at once is found again in the next round.
			if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) {
				return os.NewSyscallError("wait4", err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// forks are parent's children that somebody else forked, not before since, and that never executed a program,
// the ended ones too. With an error there may be more.
func forks(parent int, since uint64) (pids []int, err error) {
	self := procfs.Program(os.Getpid())
	children, err := procfs.ReadChildren(parent)
	if err != nil {
		return nil, err
	}
	for _, pid := range children {
		// Guardians of a daemon that was killed are of this very program.
		if procfs.Program(pid) == self {
			continue
		}
		script, err := fromScript(pid)
		if err != nil {
			return nil, err
		}
		fork, began, err := birth(pid)
		if err != nil {
			return nil, err
		}
		if !script && fork && began >= since && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// birth tells whether a process never executed a program, which is PF_FORKNOEXEC of linux/sched.h, and when it began,
// in clock ticks since the machine did: the ninth and the twenty-second field of proc_pid_stat(5). One that is gone is
// none.
func birth(pid int) (fork bool, began uint64, err error) {
	const forkNoExec = 0x40
	f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || len(f) < 20 {
		return false, 0, err
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	began, err2 := strconv.ParseUint(f[19], 10, 64)
	return flags&forkNoExec != 0, began, errors.Join(err, err2)
}

// ticks is the time since the machine's start, as birth gives it. It needs no descriptor, which may lack.
func ticks() (uint64, error) {
	const tick = time.Second / 100 // USER_HZ of the kernel
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return uint64(now.Nano() / int64(tick)), os.NewSyscallError("clock_gettime", err)
}

// fromScript tells whether a process is of an action script: CRIU sets the variable for these alone.
func fromScript(pid int) (bool, error) {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if procfs.Gone(err) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return bytes.Contains(append([]byte{0}, env...), []byte("\x00CRTOOLS_SCRIPT_ACTION=")), err
}
