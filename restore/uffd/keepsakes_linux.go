package uffd

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepsakes are copies of the guardian's userfaultfds and of the handles of the
// tasks. While they are open, page faults wait even if the guardian is killed.
// Then the tasks are killed: what the guardian knew of their memory is lost.
type keepsakes struct {
	log *slog.Logger
	of  map[uint64][]int // by memory: userfaultfd, and pidfd unless forked
}

func newKeepsakes(log *slog.Logger) keepsakes { return keepsakes{log, make(map[uint64][]int)} }

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
}

// end kills all tasks and what they have forked, and returns when none of their
// memory is left.
func (k *keepsakes) end() {
	for last := time.Now(); len(k.of) > 0; time.Sleep(5 * time.Millisecond) {
		k.signal(unix.SIGSTOP) // none is to see another one die
		children := descendants(k.pids())
		for _, pid := range children {
			unix.Kill(pid, unix.SIGSTOP)
		}
		k.signal(unix.SIGKILL)
		for id, fds := range k.of {
			if uffdProbe(fds[0], pageSize, pageSize) == unix.ESRCH {
				k.remove(id)
			}
		}
		for _, pid := range children {
			k.log.Error("killed a child of a task that lacks memory, the guardian is gone", "pid", pid)
			unix.Kill(pid, unix.SIGKILL)
		}
		if len(k.of) > 0 && time.Since(last) > 10*time.Second {
			last = time.Now()
			k.log.Error("a process that lacks memory cannot be found, its page faults hang", "processes", len(k.of))
		}
	}
}

// signal sends a signal to all tasks.
func (k *keepsakes) signal(sig unix.Signal) {
	for _, fds := range k.of {
		if len(fds) > 1 {
			unix.PidfdSendSignal(fds[1], sig, nil, 0)
		}
	}
}

// pids returns the pids of the tasks that are alive.
func (k *keepsakes) pids() []int {
	var out []int
	for _, fds := range k.of {
		if len(fds) < 2 {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fds[1]))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			if v, ok := strings.CutPrefix(line, "Pid:"); ok {
				if pid, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && pid > 0 {
					out = append(out, pid)
				}
			}
		}
	}
	return out
}
