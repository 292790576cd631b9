package uffd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A cgroup may be killed as a whole: by a unit that is stopped, by cgroup.kill, by an OOM killer that is told to take
// the whole group. All processes in it then end at once: provider, guardian and keeper of one cgroup would leave nobody
// who holds the userfaultfds, and tasks elsewhere would read zeros. So guardians, keepers and successors live in
// cgroups of their own, below one that is at the top of what can be seen of cgroup v2, or else beside the daemon's.
// Processes are born there: moving one would stop all forks of the machine for milliseconds.
//
//	gpucr-fs/guardians
//	gpucr-fs/keepers
//	gpucr-fs/successors
//
// Nothing is limited there: no controller is enabled. What is left empty is removed
// when a guardian ends.

// cgroupBase is the folder above the others.
const cgroupBase = "gpucr-fs"

const (
	cgroupGuardians  = "guardians"
	cgroupKeepers    = "keepers"
	cgroupSuccessors = "successors"
)

// cgroupTries is how often a cgroup is made that somebody else removes just then.
const cgroupTries = 5

// bases returns the folders that may hold our cgroups, the best first. It is an error
// when this process has no cgroup of version 2 that can be seen.
func bases() ([]string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return basesOf(string(own), string(mounts))
}

func basesOf(own, mounts string) ([]string, error) {
	var path string
	for line := range strings.Lines(own) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			path = p
		}
	}
	if path == "" {
		return nil, errors.New("there is no cgroup v2")
	}
	for line := range strings.Lines(mounts) {
		head, tail, _ := strings.Cut(line, " - ")
		f := strings.Fields(head)
		if len(f) < 5 || !strings.HasPrefix(tail, "cgroup2 ") {
			continue
		}
		root, top := unescape.Replace(f[3]), unescape.Replace(f[4])
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue // it shows another part
		}
		// One of our own: the others are beside it.
		if before, _, ok := strings.Cut("/"+rel+"/", "/"+cgroupBase+"/"); ok {
			return []string{filepath.Join(top, before, cgroupBase)}, nil
		}
		list := []string{filepath.Join(top, cgroupBase)}
		if beside := filepath.Join(top, filepath.Dir(rel), cgroupBase); rel != "." && beside != list[0] {
			list = append(list, beside)
		}
		return list, nil
	}
	return nil, errors.New("cgroup v2 is not mounted")
}

// unescape takes back what mountinfo does to names.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// openCgroup makes one of our cgroups, if need be, and opens it.
func openCgroup(name string) (*os.File, error) {
	list, err := bases()
	for _, base := range list {
		dir := filepath.Join(base, name)
		for range cgroupTries {
			if err = os.MkdirAll(dir, 0o755); err != nil {
				break
			}
			var fd int
			if fd, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
				return os.NewFile(uintptr(fd), dir), nil
			}
		}
	}
	return nil, err
}

// removeCgroups removes those of our cgroups that are empty.
func removeCgroups() {
	list, _ := bases()
	for _, base := range list {
		for _, name := range []string{cgroupGuardians, cgroupKeepers, cgroupSuccessors, ""} {
			// One with processes or cgroups in it stays.
			unix.Rmdir(filepath.Join(base, name))
		}
	}
}

// StartApart starts a command in the keepers' cgroup, for processes of others that have
// to outlive this process's cgroup, as startIn does.
func StartApart(command func() *exec.Cmd) (cmd *exec.Cmd, apart, err error) {
	return startIn(cgroupKeepers, command)
}

// ClearApart removes cgroups that StartApart has made, when they are empty.
func ClearApart() { removeCgroups() }

// startIn starts a command in one of our cgroups. Where that is not possible it starts
// it in this process's own and returns in apart why.
func startIn(name string, command func() *exec.Cmd) (cmd *exec.Cmd, apart, err error) {
	for range cgroupTries {
		var dir *os.File
		if dir, apart = openCgroup(name); apart != nil {
			break
		}
		cmd = command()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
		err = cmd.Start()
		dir.Close()
		if err == nil {
			return cmd, nil, nil
		}
		apart = fmt.Errorf("start in cgroup %s: %w", dir.Name(), err)
		if !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	cmd = command()
	return cmd, apart, cmd.Start()
}
