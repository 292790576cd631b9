package oci

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	n := note{Work: work, Mark: rand.Text(), Began: began(os.Getpid()), Cgroups: cgroups(os.Getpid())}
	return markVar + n.Mark, l.note(n)
}

// Watch notes the runtime, which ends a little later than a killed restore, and criu's processes among its children:
// criu itself, and the first task, which criu makes its sibling. done says that all are noted. A criu that is only
// asked for its version has ended before.
func (l *Lock) Watch(runtime int) (done bool, err error) {
	there := 0
	for _, pid := range append(procfs.Children(runtime), runtime) {
		p := process{pid, began(pid)}
		if p.began == 0 || pid != runtime && procfs.Name(pid) != criuName {
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

func (l *Lock) note(n note) error {
	n.Boot = boot()
	line, err := json.Marshal(n)
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

func (p process) alive() bool { return p.began != 0 && began(p.pid) == p.began }

// notes gives what the file tells of restores since the machine's start.
func (l *Lock) notes() (all []note, err error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, maxConfig))
	if err != nil {
		return nil, err
	}
	here := boot()
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
func left(notes []note) (all []process) {
	for _, n := range notes {
		if p := (process{n.PID, n.Began}); n.Work == "" && p.alive() {
			all = append(all, p)
		}
	}
	for _, n := range notes {
		if n.Work != "" {
			all = append(all, n.made(all)...)
		}
	}
	return all
}

// made gives criu's processes that began after a restore did and have its mark, or no mark and the cgroups of another
// one that is known. The first task loses the mark when its memory is restored, and the restore may have been killed
// before it noted it.
func (n note) made(known []process) (all []process) {
	var unmarked []process
	for _, pid := range processes() {
		p := process{pid, began(pid)}
		if p.began < n.Began || procfs.Name(pid) != criuName {
			continue
		}
		switch mark := markOf(pid); {
		case mark == "":
			unmarked = append(unmarked, p)
		case mark == n.Mark:
			all = append(all, p)
		}
	}
	for _, k := range append(all, known...) {
		in := cgroups(k.pid)
		if in == "" || in == n.Cgroups {
			continue // not the container's
		}
		for _, p := range unmarked {
			if cgroups(p.pid) == in {
				all = append(all, p)
			}
		}
	}
	return all
}

// markOf gives the mark of the restore that a process belongs to, "" without one.
func markOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for entry := range strings.SplitSeq(string(text), "\x00") {
		if mark, ok := strings.CutPrefix(entry, markVar); ok {
			return mark
		}
	}
	return ""
}

// usedBy tells whether a criu works in a directory.
func usedBy(work string) bool {
	for _, pid := range processes() {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err == nil && strings.TrimSuffix(at, " (deleted)") == work && procfs.Name(pid) == criuName {
			return true
		}
	}
	return false
}

func processes() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func cgroups(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return string(text)
}

const (
	endWait  = 10 * time.Second      // for processes that were killed
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
		if n.Work == "" || usedBy(n.Work) {
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
	for _, yard := range begin(work, ".criu.cgyard.") {
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
		found := left(notes)
		// All are stopped before one ends: its children would become another's.
		for len(found) > 0 {
			var below []process
			for _, p := range found {
				if slices.Contains(all, p) || !p.alive() {
					continue
				}
				all = append(all, p)
				_ = unix.Kill(p.pid, unix.SIGSTOP)
				for _, pid := range procfs.Children(p.pid) {
					below = append(below, process{pid, began(pid)})
				}
			}
			found = below
		}
		all = slices.DeleteFunc(all, func(p process) bool { return !p.alive() })
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

// began tells when a process began, 0 where it has ended.
func began(pid int) uint64 {
	f := procfs.Stat(fmt.Sprintf("/proc/%d/stat", pid))
	if procfs.Ended(f) || len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

func boot() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}
