package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// FindCRIU gives the program that `make criu` provides, or the one the variable CRIU names.
func FindCRIU() (string, error) {
	if p := os.Getenv("CRIU"); p != "" {
		return p, nil
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	p := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build", "criu", "criu")
	if _, err := os.Stat(p); err != nil {
		return "", fmt.Errorf("no criu: %w; run make criu, or set CRIU", err)
	}
	return p, nil
}

// Processes gives the processes of the program that are not zombies, whatever they were started for: daemons,
// guardians, successors.
func (p Program) Processes() (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.TrimSuffix(to, " (deleted)") == string(p) {
			pid, _ := strconv.Atoi(strings.Split(l, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// Role gives the processes whose first argument is role: "daemon", "guardian".
func (p Program) Role(role string) (pids []int) {
	for _, pid := range p.Processes() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(b), "\x00"); len(args) > 1 && args[1] == role {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Mounts gives the mount points of this file system that show the store.
func Mounts(store string) (points []string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		head, tail, _ := strings.Cut(line, " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if len(h) > 4 && len(t) > 1 && t[0] == "fuse.gpucr-fs" && t[1] == store {
			points = append(points, h[4])
		}
	}
	return points
}

// folders are the private folders of restores and dumps, and CRIU's.
func folders() []string {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), "gpucr-fs-*"))
	return all
}

// crius are CRIU's processes, and tasks it has not finished, that were started with this program's TMPDIR.
func crius() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range names {
		if name, _ := os.ReadFile(path); string(name) != "criu\n" {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+os.TempDir()) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// Left watches that nothing stays behind: processes of the program and of CRIU, mounts of the store, sockets, folders.
type Left struct {
	p      Program
	store  string
	before []string
	dead   []string
}

// WatchLeft notes what is there already.
func (p Program) WatchLeft(store string) *Left { return &Left{p: p, store: store, before: folders()} }

// Killed forgets the folders that a killed command could not remove, the name of a killed daemon's socket, and the
// mounts that it left: the next daemon takes these away, so that they are not forgotten twice.
func (l *Left) Killed() {
	l.dead = slices.DeleteFunc(Mounts(l.store), func(m string) bool {
		_, err := os.Stat(m)
		return !errors.Is(err, syscall.ENOTCONN) || slices.Contains(l.dead, m)
	})
	for _, f := range folders() {
		if !slices.Contains(l.before, f) {
			l.before = append(l.before, f)
		}
	}
	if len(l.p.Role("daemon")) == 0 {
		os.Remove(filepath.Join(l.store, "daemon.sock"))
	}
}

// Nothing waits until nothing is left, and says what is left after a minute.
func (l *Left) Nothing() error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := l.now()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (l *Left) now() error {
	var errs []error
	for _, pid := range l.p.Processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		errs = append(errs, fmt.Errorf("process %d is left: %q", pid, strings.ReplaceAll(string(cmdline), "\x00", " ")))
	}
	for _, pid := range crius() {
		errs = append(errs, fmt.Errorf("criu's process %d is left", pid))
	}
	for _, m := range Mounts(l.store) {
		if slices.Contains(l.dead, m) {
			continue
		}
		errs = append(errs, fmt.Errorf("mount %s is left", m))
	}
	for _, f := range folders() {
		if !slices.Contains(l.before, f) {
			errs = append(errs, fmt.Errorf("folder %s is left", f))
		}
	}
	if _, err := os.Lstat(filepath.Join(l.store, "daemon.sock")); err == nil {
		errs = append(errs, errors.New("the daemon's socket is left"))
	}
	return errors.Join(errs...)
}

// DaemonEnded says whether a store's daemon has ended. It takes its socket away first, and lets the store's lock go
// last, when it writes no more files there.
func DaemonEnded(store string) bool {
	if _, err := os.Lstat(filepath.Join(store, "daemon.sock")); err == nil {
		return false
	}
	f, err := os.Open(filepath.Join(store, "lock"))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// Log gives the end of the daemon's log.
func Log(store string) string {
	text, _ := os.ReadFile(filepath.Join(store, "daemon.log"))
	return string(text[max(0, len(text)-8000):])
}

// RunIn is Run with a bound on its time.
func (p Program) RunIn(limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return p.Run(ctx, args...)
}
