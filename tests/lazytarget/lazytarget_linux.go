// Package lazytarget builds, starts and watches src/lazytarget.c: a process that
// keeps changing and checking its memory, to be dumped and restored under it.
package lazytarget

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:embed src
var source embed.FS

// Build compiles the program into dir, statically, and returns its path.
func Build(dir string) (string, error) { return build(dir, "lazytarget") }

// BuildKinds compiles src/kinds.c, which has memory of every kind: see Scenarios.
func BuildKinds(dir string) (string, error) { return build(dir, "kinds") }

// BuildFamily compiles src/family.c, which shares its memory with the children it forks.
func BuildFamily(dir string) (string, error) { return build(dir, "family") }

func build(dir, name string) (string, error) {
	code, err := os.MkdirTemp(dir, "src-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(code)
	if err := os.CopyFS(code, source); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, name)
	out, err := exec.Command("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra",
		"-Werror", "-static", "-pthread", "-o", bin, filepath.Join(code, "src", name+".c")).
		CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w: %s\nhint: apt-get install gcc libc6-dev", name, err, out)
	}
	return bin, nil
}

// status mirrors struct status in src/status.h.
type status struct {
	ready, stop, check, checked atomic.Uint64
	pages, ops, forks           atomic.Uint64
	mismatches, sigbus, exited  atomic.Uint64
	hotNS, beats                atomic.Uint64
	hotOnly, hotPasses          atomic.Uint64
	damaged                     atomic.Uint64
	message                     [4000]byte
}

// Target is one process, or what it has become after a restore: it is known by
// its status file.
type Target struct {
	// PID of the process last seen: set by Start and Restored.
	PID int
	bin string
	mem []byte
	st  *status
	end atomic.Uint32 // syscall.WaitStatus of the process that was seen ending last
}

// Options say what the process does.
type Options struct {
	MB, Threads int
	Seed        uint64
	// Quiet processes change nothing and check their memory when asked to.
	Quiet bool
	// Rough memory of a quiet process cannot be compressed.
	Rough bool
	// Cold is how much more memory it has, in MiB, that it does not touch before Stop. Any other memory the process may
	// have asked for itself, in a moment: who strikes while some is missing needs memory that nobody asks for.
	Cold int
	// Changed of a thousand blocks of Block pages are changed by each process of src/family.c; Threads is the number
	// of its children.
	Changed, Block int
}

// Start runs the program with its status file in dir and waits until it has
// set up its memory. The calling process becomes the reaper of what a restore
// leaves behind: pids have to be free for the next one.
func Start(bin, dir string, o Options) (*Target, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	t, err := Watch(dir)
	if err != nil {
		return nil, err
	}
	t.bin = bin
	cmd := exec.Command(bin, o.Args(dir)...)
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.PID = cmd.Process.Pid
	go cmd.Wait()
	return t, t.Ready(time.Minute)
}

// Args are the program's arguments for a status file in dir.
func (o Options) Args(dir string) []string {
	args := []string{
		filepath.Join(dir, "status"),
		strconv.Itoa(o.MB),
		strconv.Itoa(o.Threads),
		strconv.FormatUint(o.Seed, 10),
	}
	if o.Block > 0 {
		args = append(args, strconv.Itoa(o.Changed), strconv.Itoa(o.Block))
	}
	if o.Quiet {
		args = append(args, "quiet")
	}
	if o.Quiet && o.Rough {
		args = append(args, "rough")
	}
	if o.Cold > 0 {
		args = append(args, "cold", strconv.Itoa(o.Cold))
	}
	return args
}

// Watch makes the status file of a program that somebody else starts, such as a
// container, and that only Ready, Check and their like are used of.
func Watch(dir string) (*Target, error) {
	path := filepath.Join(dir, "status")
	size := int(unsafe.Sizeof(status{})+4095) &^ 4095
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Target{mem: mem, st: (*status)(unsafe.Pointer(&mem[0]))}, nil
}

// Ready waits until the program has set up its memory.
func (t *Target) Ready(timeout time.Duration) error {
	return t.wait("it is ready", timeout, func() bool { return t.st.ready.Load() != 0 })
}

// Restored finds the process that a restore brought back under its pid.
func (t *Target) Restored(pid int) { t.PID = pid }

// Close gives the status mapping up.
func (t *Target) Close() error { return syscall.Munmap(t.mem) }

// Alive reports whether the process runs this program.
func (t *Target) Alive() bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", t.PID))
	if err != nil || !strings.HasPrefix(string(cmdline), t.bin+"\x00") {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.PID))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// Kill ends the process and its children.
func (t *Target) Kill() {
	if t.PID <= 0 {
		return
	}
	// It is a session leader: all it forks is in its group.
	syscall.Kill(-t.PID, syscall.SIGKILL)
	if t.Alive() {
		syscall.Kill(t.PID, syscall.SIGKILL)
	}
	t.wait("it is gone", time.Minute, t.gone)
}

// Dumped waits until the process has given its pid free after a dump.
func (t *Target) Dumped() error { return t.wait("it is dumped", time.Minute, t.gone) }

// gone reports whether the pid is free again, as a process and as the group of
// its children. It reaps what has become this process's child.
func (t *Target) gone() bool {
	// One that was killed early in its restore is not in its group yet.
	for _, who := range []int{-t.PID, t.PID} {
		for {
			var end syscall.WaitStatus
			pid, err := syscall.Wait4(who, &end, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
			if pid == t.PID {
				t.end.Store(uint32(end))
			}
		}
	}
	return syscall.Kill(t.PID, 0) == syscall.ESRCH && syscall.Kill(-t.PID, 0) == syscall.ESRCH
}

// Reap gives the pids of what has ended free, until stop is closed: a restore
// that is begun again needs them while it runs.
func (t *Target) Reap(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
			t.gone()
		}
	}
}

// Beats wait until the process has made n more steps.
func (t *Target) Beats(n uint64, timeout time.Duration) error {
	from := t.st.beats.Load()
	return t.wait("it goes on", timeout, func() bool { return t.st.beats.Load() >= from+n })
}

// Check lets a quiet process check all its memory, in each thread, and waits
// for it. It returns when the hot set of the last thread had been passed.
func (t *Target) Check(threads int, timeout time.Duration) error {
	want := t.st.checked.Load() + uint64(threads)
	t.st.check.Add(1)
	return t.wait("it has checked its memory", timeout, func() bool { return t.st.checked.Load() >= want })
}

// CheckHot lets a quiet process of one thread check its hot set only, and waits
// for it.
func (t *Target) CheckHot(timeout time.Duration) error {
	from := t.st.hotPasses.Load()
	t.st.hotOnly.Store(1)
	defer t.st.hotOnly.Store(0)
	t.st.check.Add(1)
	return t.wait("it has checked its hot set", timeout, func() bool { return t.st.hotPasses.Load() > from })
}

// Stop lets the process check everything a last time and end.
func (t *Target) Stop(timeout time.Duration) error {
	t.st.stop.Store(1)
	if err := t.wait("it has ended", timeout, func() bool { return t.st.exited.Load() != 0 }); err != nil {
		return err
	}
	return t.wait("it is gone", timeout, t.gone)
}

// Damaged tells the process that it may find memory that cannot be read.
func (t *Target) Damaged() { t.st.damaged.Store(1) }

// StopDamaged is Stop for a process some of whose memory cannot be read: it
// may also have ended by SIGBUS.
func (t *Target) StopDamaged(timeout time.Duration) error {
	t.st.stop.Store(1)
	return t.wait("it is gone", timeout, t.gone)
}

// Ended reports whether the process is gone, its children included.
func (t *Target) Ended(timeout time.Duration) error { return t.wait("it is gone", timeout, t.gone) }

// Reset prepares the status for another restore of the same images.
func (t *Target) Reset() {
	for _, v := range []*atomic.Uint64{&t.st.stop, &t.st.exited, &t.st.checked,
		&t.st.mismatches, &t.st.sigbus, &t.st.pages, &t.st.ops, &t.st.forks, &t.st.check, &t.st.hotPasses} {
		v.Store(0)
	}
	t.end.Store(0)
	t.st.message = [4000]byte{}
}

func (t *Target) wait(what string, timeout time.Duration, ok func() bool) error {
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if err := t.Err(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("lazytarget %d: not after %v that %s: %s", t.PID, timeout, what, t)
		}
	}
	return t.Err()
}

// Err tells of wrong memory.
func (t *Target) Err() error {
	if n := t.st.mismatches.Load(); n > 0 {
		return fmt.Errorf(
			"lazytarget %d: %d mismatches: %s", t.PID, n, strings.TrimRight(string(t.st.message[:]), "\x00"),
		)
	}
	return nil
}

// ArmHot lets a quiet process of one thread pass its hot set as soon as it runs
// again. It is to be called between Reset and a restore.
func (t *Target) ArmHot() {
	t.st.hotOnly.Store(1)
	t.st.check.Add(1)
}

// HotPassed waits until the process has passed its hot set since Reset, and lets
// it check all of its memory from then on.
func (t *Target) HotPassed(timeout time.Duration) error {
	err := t.wait("it has passed its hot set", timeout, func() bool { return t.st.hotPasses.Load() > 0 })
	t.st.hotOnly.Store(0)
	return err
}

// SIGBUS counts the pages that could not be read.
func (t *Target) SIGBUS() uint64 { return t.st.sigbus.Load() }

// Lacked reports whether the process has met memory that could not be read. Where that is the stack on which its
// handler would run, the kernel ends it by SIGSEGV and nothing is counted.
func (t *Target) Lacked() bool {
	end := syscall.WaitStatus(t.end.Load())
	return t.SIGBUS() > 0 || end.Signaled() && (end.Signal() == syscall.SIGBUS || end.Signal() == syscall.SIGSEGV)
}

// Checked counts the pages compared so far.
func (t *Target) Checked() uint64 { return t.st.pages.Load() }

// HotTime is when a quiet process had passed its hot set the last time.
func (t *Target) HotTime() time.Time { return time.Unix(0, int64(t.st.hotNS.Load())) }

func (t *Target) String() string {
	return fmt.Sprintf("%d pages compared, %d changes, %d forks, %d mismatches, %d pages gave SIGBUS",
		t.st.pages.Load(), t.st.ops.Load(), t.st.forks.Load(), t.st.mismatches.Load(), t.st.sigbus.Load())
}

// Images returns the pages files of an image directory.
func Images(dir string) ([]string, error) {
	m, err := filepath.Glob(filepath.Join(dir, "pages-*.img"))
	if err == nil && len(m) == 0 {
		err = errors.Join(fs.ErrNotExist, fmt.Errorf("no pages files in %s", dir))
	}
	return m, err
}

// Scenarios are what src/kinds.c checks, one at each Check; a Check beyond the last
// looks at all memory again.
var Scenarios = []string{
	"guards",
	"guards and fork",
	"guards and mremap",
	"guards and munmap",
	"late guards",
	"wipe on fork",
	"dontfork",
	"freed",
	"no difference",
}
