package pidns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Member is a process in a namespace that New made, for this process or another.
type Member struct {
	Init   int // the pid of the namespace's first process, out here
	Inside int // the process's own pid there
}

// Find tells whether a process is in such a namespace, directly below this process's, and where. The init itself
// is in it, too. With an error it is not known. One that is gone is in none.
func Find(pid int) (Member, bool, error) {
	numbers, err := procfs.ReadNumbers(pid)
	if err != nil || len(numbers) != 2 {
		return Member{}, false, err
	}
	for up := pid; up > 1; {
		n, err := procfs.ReadNumbers(up)
		if err != nil {
			return Member{}, false, err
		}
		if len(n) == 2 && n[1] == 1 {
			is, err := isInit(up)
			return Member{up, numbers[1]}, is, err
		}
		f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", up))
		if err != nil {
			return Member{}, false, err
		}
		if len(f) < 2 {
			break
		}
		if _, err := fmt.Sscan(f[1], &up); err != nil {
			break
		}
	}
	return Member{}, false, nil
}

// isInit tells whether the first process of a pid namespace is one of ours. In a user namespace of its own it is
// not: who made that may be anybody, and what we would start there is theirs to choose.
func isInit(pid int) (bool, error) {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil && !procfs.Gone(err) {
		return false, err
	}
	if strings.TrimSpace(string(comm)) != initName {
		return false, nil
	}
	ours, err := os.Readlink("/proc/self/ns/user")
	theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if procfs.Gone(err2) || errors.Is(err2, fs.ErrPermission) {
		return false, err
	}
	return ours == theirs, errors.Join(err, err2)
}

// Enter goes into the namespace of a member, where it is that of the member's init: End leaves the namespace.
func (m Member) Enter() (*Namespace, error) {
	n := &Namespace{thread: newThread(), pidfd: -1, init: m.Init, entered: true}
	err := n.Do(func() (err error) {
		if n.proc, err = os.Open("/proc"); err != nil {
			return err
		}
		if n.pidfd, err = unix.PidfdOpen(m.Init, 0); err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
		if is, err := isInit(m.Init); err != nil || !is {
			return cmp.Or(err, error(unix.ESRCH))
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		return os.NewSyscallError("setns", unix.Setns(n.pidfd, unix.CLONE_NEWPID|unix.CLONE_NEWNS|unix.CLONE_NEWNET))
	})
	if err != nil {
		n.End()
		return nil, fmt.Errorf("enter the pid namespace of process %d: %w", m.Init, err)
	}
	return n, nil
}
