package uffd

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// heldFDs are copies of the guardian's userfaultfds and of the handles of the
// tasks. While they are open, page faults wait even if the guardian is killed.
// Then the tasks are killed, also those that have all their memory: what the
// guardian knew of the others' is lost, and none is to see another one die. What
// the guardian had no time to send, its keeper has.
type heldFDs struct {
	log    *slog.Logger
	uffds  map[uint64]int // userfaultfd by memory
	tasks  []int          // pidfds
	keeper int            // its handle, -1 when there is none
	criu   int            // CRIU's while it waits for the tasks, else -1
}

func newHeldFDs(log *slog.Logger) heldFDs {
	return heldFDs{log: log, uffds: make(map[uint64]int), keeper: -1, criu: -1}
}

// keptBy notes the guardian's keeper, by its pid.
func (k *heldFDs) setKeeper(keeper string) {
	pid, err := strconv.Atoi(keeper)
	if err == nil {
		k.keeper, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		k.keeper = -1
		if err == unix.ESRCH {
			return // the guardian is about to end
		}
		k.log.Warn("cannot find the guardian's keeper", "pid", keeper, "err", err)
	}
}

// add keeps what came with a packet.
func (k *heldFDs) add(p *packet) {
	fds := p.fds
	if p.kind == kindMemory && len(fds) > 0 {
		k.remove(p.id)
		k.uffds[p.id], fds = fds[0], fds[1:]
	}
	k.tasks = append(k.tasks, fds...)
}

// watch keeps the handle of CRIU that came with a packet, or gives it up where none came.
func (k *heldFDs) watch(p *packet) {
	if k.criu >= 0 {
		unix.Close(k.criu)
		k.criu = -1
	}
	if len(p.fds) > 0 {
		k.criu = p.fds[0]
		closeAll(p.fds[1:])
	}
}

// remove gives up the userfaultfd of a memory that is complete, or gone.
func (k *heldFDs) remove(id uint64) {
	if fd, ok := k.uffds[id]; ok {
		unix.Close(fd)
		delete(k.uffds, id)
	}
}

// drop closes everything: somebody else looks after the tasks.
func (k *heldFDs) drop() {
	for id := range k.uffds {
		k.remove(id)
	}
	closeAll(k.tasks)
	k.tasks = nil
	k.watch(&packet{})
	k.dismiss()
}

func (k *heldFDs) dismiss() {
	if k.keeper >= 0 {
		unix.Close(k.keeper)
		k.keeper = -1
	}
}

// collect takes all userfaultfds over from the keeper of a guardian that is dead,
// and ends it.
func (k *heldFDs) collect() {
	defer k.dismiss()
	pid, ok := pidOf(k.keeper)
	if !ok {
		return
	}
	list, err := userfaultfds(fmt.Sprintf("/proc/%d/fd", pid))
	for _, n := range list {
		fd, e := unix.PidfdGetfd(k.keeper, n, 0)
		if e != nil {
			err = e
			continue
		}
		// No memory has such a number: they count from 1.
		k.uffds[^uint64(n)] = fd
	}
	if err != nil {
		// It keeps what it has until that is not needed any more.
		k.log.Error("cannot relieve the guardian's keeper", "pid", pid, "err", err)
		return
	}
	unix.PidfdSendSignal(k.keeper, unix.SIGKILL, nil, 0)
}

// userfaultfds returns the numbers of those among a process's descriptors, by their folder in /proc. With an error
// there may be more.
func userfaultfds(dir string) (numbers []int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		to, lerr := os.Readlink(filepath.Join(dir, e.Name()))
		if lerr != nil {
			if !procfs.Gone(lerr) {
				err = lerr
			}
			continue
		}
		if n, nerr := strconv.Atoi(e.Name()); nerr == nil && to == "anon_inode:[userfaultfd]" {
			numbers = append(numbers, n)
		}
	}
	if procfs.Gone(err) {
		return numbers, nil
	}
	return numbers, err
}

// end kills all tasks and what they have forked, unless all memory is complete,
// and returns when none of that which is not is left, nor a CRIU that was waiting for them.
func (k *heldFDs) end() {
	defer k.drop()
	k.collect()
	if len(k.uffds) > 0 {
		defer k.outlast()
	}
	for last := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		for id, fd := range k.uffds {
			if uffdProbe(fd, pageSize, pageSize) == unix.ESRCH {
				k.remove(id)
			}
		}
		if len(k.uffds) == 0 {
			return
		}
		k.kill()
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			k.log.Error("a process that lacks memory cannot be found, its page faults hang", "processes", len(k.uffds))
		}
	}
}

// outlast waits for the end of a CRIU whose tasks were ended before its end mark.
func (k *heldFDs) outlast() {
	pid, there := pidOf(k.criu)
	if there && outlast(&process{pid, k.criu}, nil) {
		k.log.Error(killedCRIU, "pid", pid)
	}
}

// stopTime bounds how long kill waits for what it has stopped.
const stopTime = 100 * time.Millisecond

// pidTries bounds how often a pid is looked for, every lackPause: tasks that lack memory are to end.
const pidTries = 100

// kill kills all tasks and what they have forked; none is to see another one die.
func (k *heldFDs) kill() {
	var all []int
	pidfds := make(map[int]int)
	for _, fd := range k.tasks {
		pid, ok := pidOf(fd)
		if !ok {
			// In another pid namespace, or gone.
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			continue
		}
		unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0)
		all = append(all, pid)
		pidfds[pid] = fd
	}
	// A fork that is under way ends before its thread stops. A child that is not
	// known when its parent is killed cannot be found any more.
	for late, stopped := time.Now().Add(stopTime), false; !stopped; {
		stopped = !slices.ContainsFunc(all, runs) || time.Now().After(late)
		for _, pid := range descendants(all) {
			if !slices.Contains(all, pid) {
				unix.Kill(pid, unix.SIGSTOP)
				all = append(all, pid)
				stopped = false
			}
		}
		if !stopped {
			time.Sleep(time.Millisecond)
		}
	}
	processTree().sort(all)
	for _, pid := range all {
		if fd, ok := pidfds[pid]; ok {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			continue
		}
		k.log.Error("killed a child of a task that lacks memory, the guardian is gone", "pid", pid)
		unix.Kill(pid, unix.SIGKILL)
	}
}

// pidOf returns the pid of a pidfd's process, ok false when it is gone or not seen
// from here, or when that cannot be found out soon.
func pidOf(pidfd int) (pid int, ok bool) {
	var info []byte
	var err error
	for range pidTries {
		if info, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd)); !prefetch.IsLack(err) {
			break
		}
		time.Sleep(lackPause)
	}
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(info)) {
		if v, found := strings.CutPrefix(line, "Pid:"); found {
			pid, err := strconv.Atoi(strings.TrimSpace(v))
			return pid, err == nil && pid > 0
		}
	}
	return 0, false
}
