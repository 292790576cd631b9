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
)

// keepsakes are copies of the guardian's userfaultfds and of the handles of the
// tasks. While they are open, page faults wait even if the guardian is killed.
// Then the tasks are killed: what the guardian knew of their memory is lost. What
// it had no time to send, its keeper has.
type keepsakes struct {
	log    *slog.Logger
	of     map[uint64][]int // by memory: userfaultfd, and pidfd unless forked
	keeper int              // its handle, -1 when there is none
}

func newKeepsakes(log *slog.Logger) keepsakes {
	return keepsakes{log: log, of: make(map[uint64][]int), keeper: -1}
}

// relieve notes the guardian's keeper, by its pid.
func (k *keepsakes) relieve(keeper string) {
	pid, err := strconv.Atoi(keeper)
	if err == nil {
		k.keeper, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		k.keeper = -1
		k.log.Warn("cannot find the guardian's keeper", "pid", keeper, "err", err)
	}
}

func (k *keepsakes) add(id uint64, fds []int) {
	k.remove(id)
	k.of[id] = fds
}

func (k *keepsakes) remove(id uint64) {
	closeAll(k.of[id])
	delete(k.of, id)
}

// drop closes everything: somebody else looks after the tasks.
func (k *keepsakes) drop() {
	for id := range k.of {
		k.remove(id)
	}
	k.dismiss()
}

func (k *keepsakes) dismiss() {
	if k.keeper >= 0 {
		unix.Close(k.keeper)
		k.keeper = -1
	}
}

// collect takes all userfaultfds over from the keeper of a guardian that is dead,
// and ends it.
func (k *keepsakes) collect() {
	defer k.dismiss()
	pid, ok := pidOf(k.keeper)
	if !ok {
		return
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for i, l := range links {
		if to, err := os.Readlink(l); err != nil || to != "anon_inode:[userfaultfd]" {
			continue
		}
		n, _ := strconv.Atoi(filepath.Base(l))
		fd, e := unix.PidfdGetfd(k.keeper, n, 0)
		if e != nil {
			err = e
			continue
		}
		// No memory has such a number: they count from 1.
		k.of[^uint64(i)] = []int{fd}
	}
	if err != nil {
		// It keeps what it has until that is not needed any more.
		k.log.Error("cannot relieve the guardian's keeper", "pid", pid, "err", err)
		return
	}
	unix.PidfdSendSignal(k.keeper, unix.SIGKILL, nil, 0)
}

// end kills all tasks and what they have forked, and returns when none of their
// memory is left.
func (k *keepsakes) end() {
	k.collect()
	for last := time.Now(); len(k.of) > 0; time.Sleep(5 * time.Millisecond) {
		k.kill()
		for id, fds := range k.of {
			if uffdProbe(fds[0], pageSize, pageSize) == unix.ESRCH {
				k.remove(id)
			}
		}
		if len(k.of) > 0 && time.Since(last) > 10*time.Second {
			last = time.Now()
			k.log.Error("a process that lacks memory cannot be found, its page faults hang", "processes", len(k.of))
		}
	}
}

// stopTime bounds how long kill waits for what it has stopped.
const stopTime = 100 * time.Millisecond

// kill kills all tasks and what they have forked; none is to see another one die.
func (k *keepsakes) kill() {
	var all []int
	pidfds := make(map[int]int)
	for _, fds := range k.of {
		if len(fds) < 2 {
			continue
		}
		pid, ok := pidOf(fds[1])
		if !ok {
			// In another pid namespace, or gone.
			unix.PidfdSendSignal(fds[1], unix.SIGKILL, nil, 0)
			continue
		}
		unix.PidfdSendSignal(fds[1], unix.SIGSTOP, nil, 0)
		all = append(all, pid)
		pidfds[pid] = fds[1]
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
// from here.
func pidOf(pidfd int) (pid int, ok bool) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd))
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
