// Package actors finds those who take part in a dump with gpucr-fs, and kills one of them at a chosen moment.
package actors

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpucr/gpucr-fs/cuda"
)

// Those who take part.
const (
	Command = "gpucr-fs"
	Holder  = "gpucr-cuda"
	CRIU    = "criu"
	Daemon  = "daemon"
)

// Dump is one that goes on.
type Dump struct {
	PID    int    // of gpucr-fs dump
	Target int    // the first process that is dumped
	Store  string // its folder
	Holder string // the file of gpucr-cuda
}

// Find gives the pid of an actor, 0 when it is not there.
func (d *Dump) Find(actor string) int {
	switch actor {
	case Command:
		if state := status(d.PID, "State"); state == "" || strings.HasPrefix(state, "Z") {
			return 0
		}
		return d.PID
	case Daemon:
		pid, err := DaemonOf(d.Store)
		if err != nil {
			return 0
		}
		return pid
	}
	pids, err := cuda.Tree(d.PID)
	if err != nil {
		return 0
	}
	for _, pid := range pids {
		if actor == Holder && d.isHolder(pid) || actor == CRIU && Dumps(pid) {
			return pid
		}
	}
	return 0
}

// Kill kills an actor and gives its pid, 0 when it is not there. A criu is spared, too, unless it writes memory: when
// it injects code into processes, a moment before and after, nobody could save them. The store's daemon is stopped
// while that is looked at, so that criu cannot go on.
func (d *Dump) Kill(actor string) (int, error) {
	pid := d.Find(actor)
	if pid == 0 {
		return 0, nil
	}
	if actor != CRIU {
		return pid, kill(pid, syscall.SIGKILL)
	}
	if !WritesPages(pid) {
		return 0, nil
	}
	daemon := d.Find(Daemon)
	if daemon == 0 {
		return 0, nil
	}
	if err := kill(daemon, syscall.SIGSTOP); err != nil {
		return 0, err
	}
	var err error
	if WritesPages(pid) {
		err = kill(pid, syscall.SIGKILL)
	} else {
		pid = 0
	}
	return pid, errors.Join(err, kill(daemon, syscall.SIGCONT))
}

// kill sends a signal to a process that may have ended.
func kill(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %d to process %d: %w", s, pid, err)
	}
	return nil
}

// Busy tells whether a gpucr-cuda, or a criu that dumps into the store, is still there: who gives GPUs back, and a criu
// whose command is gone, go on for a while.
func (d *Dump) Busy() bool {
	for _, pid := range processes() {
		if d.isHolder(pid) || Dumps(pid) && d.holdsStore(pid) {
			return true
		}
	}
	return false
}

func (d *Dump) isHolder(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && exe == d.Holder
}

// holdsStore tells whether a process works for the store: its descriptors lead there.
func (d *Dump) holdsStore(pid int) bool {
	return slices.ContainsFunc(open(pid), func(to string) bool { return strings.HasPrefix(to, filepath.Dir(d.Store)) })
}

// DaemonOf finds the daemon of a store: it holds a lock on a file of it.
func DaemonOf(store string) (int, error) {
	for _, pid := range processes() {
		if slices.Contains(arguments(pid), "daemon") && slices.Contains(open(pid), filepath.Join(store, "lock")) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no daemon has %s", store)
}

// Dumps tells whether a process is a criu that dumps, or is about to: what it was started with, or what it calls itself
// when it does.
func Dumps(pid int) bool {
	args := arguments(pid)
	return slices.Contains(args, "swrk") ||
		slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "dump --rpc") })
}

// WritesPages tells whether a process has an image of memory open.
func WritesPages(pid int) bool {
	return slices.ContainsFunc(
		open(pid),
		func(to string) bool { return strings.HasPrefix(filepath.Base(to), "pages-") },
	)
}

func arguments(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(string(line), "\x00")
}

// open lists the files that a process has open.
func open(pid int) (files []string) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			files = append(files, to)
		}
	}
	return files
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

// status gives a line of a process's status file.
func status(pid int, line string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"+line+":\t"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	return string(value)
}
