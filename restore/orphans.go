package restore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// orphans ends the processes that a CRIU which was killed has forked and left: those by which it tries out the kernel and the tasks it was making. Each of them
// may wait for it for ever, stopped or asleep. They hold its end of the socket, whose inode is given, as do the user's action scripts and the programs that
// CRIU starts, which are left alone: they end by themselves, or are meant to stay.
func orphans(socket uint64) error {
	const (
		again = 10 * time.Millisecond // a fork that was under way shows a little later
		limit = 5 * time.Second
	)
	link := fmt.Sprintf("socket:[%d]", socket)
	late := time.Now().Add(limit)
	for quiet := 0; quiet < 2; {
		found, err := endForks(link)
		switch {
		case err != nil:
			return fmt.Errorf("look for what criu has left: %w", err)
		case found == 0:
			quiet++
			time.Sleep(again)
		case time.Now().After(late):
			return fmt.Errorf("%d processes that criu has left do not end", found)
		default:
			quiet = 0
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// endForks kills the forks that have a descriptor of that name, and counts them until they have ended.
func endForks(link string) (found int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if dir := filepath.Join("/proc", e.Name()); isFork(dir) && holds(dir, link) && !fromScript(dir) {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
				found++
			}
		}
		unix.Close(fd)
	}
	return found, nil
}

// isFork tells whether a process still runs the program of who forked it: PF_FORKNOEXEC of linux/sched.h, in the ninth field of proc_pid_stat(5).
func isFork(dir string) bool {
	const forkNoExec = 0x40
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return false
	}
	// The second field is the name in parentheses, which may contain anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return err == nil && flags&forkNoExec != 0
}

// holds tells whether a process that has not ended has a descriptor of that name.
func holds(dir, link string) bool {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == link {
			return true
		}
	}
	return false
}

// fromScript tells whether a process is of an action script: CRIU sets the variable for these alone.
func fromScript(dir string) bool {
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	return err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00CRTOOLS_SCRIPT_ACTION="))
}
