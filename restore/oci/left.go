package oci

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// What criu forks outlives a criu that is killed, and criu waits without end for a task that somebody else has ended.
// So a restore writes into the file of its lock which processes are its own. The next restore of the container, or its
// removal, ends them.

// note is one entry of that file: a process, or where criu works. Times are clock ticks since the machine's start, as
// in the twenty-second field of proc_pid_stat(5).
type note struct {
	// Boot is the kernel's boot_id: ticks and pids are of that run of the machine.
	Boot string `json:"boot"`
	// PID is the runtime, criu, or the first task that criu has made; 0 with Work.
	PID int `json:"pid,omitempty"`
	// Began is when that process began; with Work, when the restore did.
	Began uint64 `json:"began"`
	// Work is criu's work directory. Another restore may have the same.
	Work string `json:"work,omitempty"`
	// Mark is in the environment of criu's processes; with Work.
	Mark string `json:"mark,omitempty"`
	// Cgroups are those of the restore. The runtime puts criu into the container's.
	Cgroups string `json:"cgroups,omitempty"`
}

// criuName is what the kernel calls criu's processes: the tasks, too, until they are nearly restored.
const criuName = "criu"

// markVar is in the environment of a restore's runtime and criu. Tasks have criu's until they are nearly restored.
const markVar = "GPUCR_FS_RESTORE="

// Begin notes that this process restores the container, with criu in the work directory. env is for the environment of
// the runtime: by it criu's processes are known.
func (l *Lock) Begin(work string) (env string, err error) {
	if work, err = filepath.EvalSymlinks(work); err != nil {
		return "", err
	}
	n := note{Work: work, Mark: rand.Text()}
	if n.Began, err = began(os.Getpid()); err != nil {
		return "", err
	}
	if n.Cgroups, err = read(os.Getpid(), "cgroup"); err != nil {
		return "", err
	}
	return markVar + n.Mark, l.note(n)
}

// Watch notes the runtime, which ends a little later than a killed restore, and criu's processes among its children:
// criu itself, and the first task, which criu makes its sibling. done says that all are noted. A criu that is only
// asked for its version has ended before. One that cannot be looked at now is noted by a later call.
func (l *Lock) Watch(runtime int) (done bool, err error) {
	there := 0
	for _, pid := range append(procfs.Children(runtime), runtime) {
		start, err := began(pid)
		p := process{pid, start}
		if err != nil || p.began == 0 || pid != runtime && procfs.Name(pid) != criuName {
			continue
		}
		there++
		if slices.Contains(l.noted, p) {
			continue
		}
		if err := l.note(note{PID: pid, Began: p.began}); err != nil {
			return false, err
		}
		l.noted = append(l.noted, p)
	}
	return there > 2, nil
}

func (l *Lock) note(n note) (err error) {
	var line []byte
	if n.Boot, err = boot(); err == nil {
		line, err = json.Marshal(n)
	}
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note what a restore makes: %w", err)
	}
	return nil
}

// process is one that /proc names: its pid may be another's later.
type process struct {
	pid   int
	began uint64
}

func (p process) alive() (bool, error) {
	now, err := began(p.pid)
	return err == nil && p.began != 0 && p.began == now, err
}

// notes gives what the file tells of restores since the machine's start.
func (l *Lock) notes() (all []note, err error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, maxConfig))
	if err != nil {
		return nil, err
	}
	here, err := boot()
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var n note
		// The last line may be half written.
		if json.Unmarshal(line, &n) == nil && n.Boot == here && n.Began > 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// left gives the processes that restores have left, without those below them.
func left(notes []note) (all []process, err error) {
	for _, n := range notes {
		if n.Work == "" {
			all = append(all, process{n.PID, n.Began})
		}
	}
	if all, err = living(all); err != nil {
		return nil, err
	}
	for _, n := range notes {
		if n.Work == "" {
			continue
		}
		made, err := n.made(all)
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}

// living gives those of some processes that have not ended.
func living(all []process) (alive []process, err error) {
	for _, p := range all {
		is, err := p.alive()
		if err != nil {
			return nil, err
		}
		if is {
			alive = append(alive, p)
		}
	}
	return alive, nil
}

// made gives criu's processes that began after a restore did and have its mark, or no mark and the cgroups of another
// one that is known. The first task loses the mark when its memory is restored, and the restore may have been killed
// before it noted it.
func (n note) made(known []process) (all []process, err error) {
	var unmarked []process
	pids, err := procfs.PIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		start, err1 := began(pid)
		p := process{pid, start}
		criu, err2 := isCRIU(pid)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if p.began < n.Began || !criu {
			continue
		}
		mark, err := markOf(pid)
		switch {
		case err != nil:
			return nil, err
		case mark == "":
			unmarked = append(unmarked, p)
		case mark == n.Mark:
			all = append(all, p)
		}
	}
	for _, k := range append(all, known...) {
		in, err := read(k.pid, "cgroup")
		if err != nil {
			return nil, err
		}
		if in == "" || in == n.Cgroups {
			continue // not the container's
		}
		for _, p := range unmarked {
			its, err := read(p.pid, "cgroup")
			if err != nil {
				return nil, err
			}
			if its == in {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// markOf gives the mark of the restore that a process belongs to, "" without one.
func markOf(pid int) (string, error) {
	text, err := read(pid, "environ")
	for entry := range strings.SplitSeq(text, "\x00") {
		if mark, ok := strings.CutPrefix(entry, markVar); ok {
			return mark, nil
		}
	}
	return "", err
}

// usedBy tells whether a criu works in a directory.
func usedBy(work string) (bool, error) {
	pids, err := procfs.PIDs()
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if errors.Is(err, unix.ENAMETOOLONG) {
			continue // anybody may be as deep as that, but not in a directory that a path names
		}
		if err != nil && !procfs.Gone(err) && !errors.Is(err, fs.ErrPermission) {
			return false, err
		}
		if err == nil && strings.TrimSuffix(at, " (deleted)") == work {
			if criu, err := isCRIU(pid); criu || err != nil {
				return true, err
			}
		}
	}
	return false, nil
}

func isCRIU(pid int) (bool, error) {
	name, err := read(pid, "comm")
	return name == criuName+"\n", err
}

// read gives a file of a process, nothing where that is gone, or another user's. Other errors, such as a lack of
// descriptors, say nothing about the process.
func read(pid int, name string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if procfs.Gone(err) || errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return string(text), err
}

const (
	endWait  = time.Minute           // for processes that were killed
	forkTime = 10 * time.Millisecond // in which a fork that was under way shows
)

// endLeft ends the processes that killed restores have left, with all below them, and waits until they have ended. Then
// it unmounts what they have mounted in criu's work directory.
func (l *Lock) endLeft() error {
	notes, err := l.notes()
	if err != nil {
		return err
	}
	if err := endProcesses(notes); err != nil {
		return err
	}
	for _, n := range notes {
		if n.Work == "" {
			continue
		}
		used, err := usedBy(n.Work)
		if err != nil {
			return err
		}
		if used {
			continue // what is mounted there may be the other criu's
		}
		if err := unmountYards(n.Work); err != nil {
			return err
		}
	}
	return nil
}

// unmountYards removes the folders in a work directory where criu mounts all cgroups for itself. A removal of such a
// directory with all that is in it would go on to the cgroups of the machine.
func unmountYards(work string) error {
	yards, err := begin(work, ".criu.cgyard.")
	if err != nil {
		return err
	}
	for _, yard := range yards {
		if err := unmountAll(yard); err != nil {
			return err
		}
		if err := unix.Rmdir(yard); err != nil && err != unix.ENOENT {
			return fmt.Errorf("remove %s, which a killed restore has left: %w", yard, err)
		}
	}
	return nil
}

func endProcesses(notes []note) error {
	var all []process
	for late := time.Now().Add(endWait); ; time.Sleep(forkTime) {
		var err error
		if all, err = stopLeft(notes, all); err == nil {
			all, err = living(all)
		}
		if err != nil {
			return fmt.Errorf("look for processes that a killed restore has left (hint: try again): %w", err)
		}
		if len(all) == 0 {
			return nil
		}
		if time.Now().After(late) {
			return fmt.Errorf("process %d, which a killed restore has left, does not end: try again when it has",
				all[0].pid)
		}
		for _, p := range all {
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d, which a killed restore has left: %w", p.pid, err)
			}
		}
	}
}

// stopLeft stops what restores have left, with all below, and adds it to all. All are stopped before one ends: its
// children would become another's.
func stopLeft(notes []note, all []process) ([]process, error) {
	found, err := left(notes)
	for err == nil && len(found) > 0 {
		p := found[0]
		found = found[1:]
		if slices.Contains(all, p) {
			continue
		}
		alive, err := p.alive()
		if err != nil {
			return nil, err
		}
		if !alive {
			continue
		}
		all = append(all, p)
		_ = unix.Kill(p.pid, unix.SIGSTOP)
		below, err := procfs.ReadChildren(p.pid)
		if err != nil {
			return nil, err
		}
		for _, pid := range below {
			start, err := began(pid)
			if err != nil {
				return nil, err
			}
			found = append(found, process{pid, start})
		}
	}
	return all, err
}

// began tells when a process began, 0 where it has ended or is not to be seen from here.
func began(pid int) (uint64, error) {
	f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	if err != nil || procfs.Ended(f) || len(f) < 20 {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func boot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
