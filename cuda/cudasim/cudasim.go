// Package cudasim builds a libcuda.so.1 that needs no GPU (src/cudasim.c tells
// what it does), an application that uses it (src/app.c), and starts and asks
// such applications.
package cudasim

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed src
var sources embed.FS

// Sim is a simulated driver in a folder.
type Sim struct {
	// Dir holds what was built, and VRAM.
	Dir string
	// Library is libcuda.so.1, App the application, Waiter a program that runs it and stops when it is stopped.
	Library, App, Waiter string
	// Device is what processes with VRAM have open: a file that CRIU does not dump.
	Device string
	// Mapped is what they have mapped: a block device, which CRIU does not dump either.
	Mapped string
}

// fuse is the number of /dev/fuse, the stand-in for a GPU's device.
var fuse = unix.Mkdev(10, 229)

// Close takes the devices away.
func (s *Sim) Close() error { return errors.Join(os.Remove(s.Device), os.Remove(s.Mapped)) }

// blockDevice gives the number of a block device that is there.
func blockDevice() (int, error) {
	names, err := filepath.Glob("/sys/class/block/*/dev")
	if err != nil || len(names) == 0 {
		return 0, errors.New("cudasim: no block device; load the module loop")
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("cudasim: %s: %w", names[0], err)
	}
	return int(unix.Mkdev(major, minor)), nil
}

// Build compiles driver and application into dir with the C compiler.
func Build(dir string) (*Sim, error) {
	s := &Sim{Dir: dir, Library: filepath.Join(dir, "libcuda.so.1"), App: filepath.Join(dir, "app"),
		Waiter: filepath.Join(dir, "waiter")}
	names, err := fs.Glob(sources, "src/*")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		text, err := sources.ReadFile(n)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(n)), text, 0o644); err != nil {
			return nil, err
		}
	}
	flags := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", s.Library, "cudasim.c", "ask.c", "hazards.c",
			"results.c"},
		{"-o", s.Waiter, "waiter.c"},
		{"-o", s.App, "app.c", s.Library, "-Wl,-rpath," + dir},
	} {
		cmd := exec.Command("cc", append(flags, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("cudasim: %w: %s\nhint: apt-get install gcc libc6-dev", err, out)
		}
	}
	s.Device = fmt.Sprintf("/dev/nvidia-sim%d", os.Getpid())
	if err := unix.Mknod(s.Device, unix.S_IFCHR|0o666, int(fuse)); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: s.Device, Err: err}
	}
	block, err := blockDevice()
	if err != nil {
		return nil, err
	}
	s.Mapped = s.Device + "-mapped"
	if err := unix.Mknod(s.Mapped, unix.S_IFBLK|0o666, block); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: s.Mapped, Err: err}
	}
	return s, nil
}

// Options of an application.
type Options struct {
	MiB, GPUs, Processes int // 0: 8, 1, 1
	// Idle are GPUs of the machine that no process uses.
	Idle int
	// Host tells the GPUs of one machine from those of another.
	Host int
	// Asks gives each process a thread that asks the driver all the time.
	Asks bool
	// Registered are MiB of memory that each process has registered with the driver.
	Registered int
	// Room are MiB of addresses that the driver gives up with the GPU, and takes back whatever lies there.
	Room int
	// Waited puts Sim.Waiter before the application: it is the first process then.
	Waited bool
}

// Env is what a program that loads the simulated driver needs in its environment.
func (s *Sim) Env(o Options) []string {
	gpus := max(o.GPUs, 1) + o.Idle
	return []string{"CUDASIM_DEVICE=" + s.Device, "CUDASIM_MAPPED=" + s.Mapped, "CUDASIM_DIR=" + s.Dir,
		"CUDASIM_GPUS=" + strconv.Itoa(gpus), "CUDASIM_HOST=" + strconv.Itoa(o.Host)}
}

// Target is an application, or what it has become after a restore: it is known by its pid and sockets.
type Target struct {
	PID    int
	Socket string // of the first process; the others' end in .1, .2, ...
	log    string
}

// Start runs the application in a session of its own, its socket and log in dir, and waits until all its processes
// answer. The calling process becomes the reaper of what it and a restore leave behind: pids have to be free for the
// next one.
func (s *Sim) Start(dir string, o Options) (*Target, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	t := &Target{Socket: filepath.Join(dir, "app.sock"), log: filepath.Join(dir, "app.log")}
	log, err := os.OpenFile(t.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	procs := max(o.Processes, 1)
	args := []string{s.App, t.Socket, strconv.Itoa(max(o.MiB, 8)), strconv.Itoa(max(o.GPUs, 1)), strconv.Itoa(procs)}
	if o.Waited {
		args = append([]string{s.Waiter}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = append(cmd.Environ(), s.Env(o)...), log, log, "/"
	if o.Registered > 0 {
		cmd.Env = append(cmd.Env, "CUDASIM_REGISTERED="+strconv.Itoa(o.Registered))
	}
	if o.Room > 0 {
		cmd.Env = append(cmd.Env, "CUDASIM_ROOM="+strconv.Itoa(o.Room))
	}
	if o.Asks {
		cmd.Env = append(cmd.Env, "CUDASIM_ASKS=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.PID = cmd.Process.Pid
	go cmd.Wait()
	for i := range procs {
		if _, _, err := t.Ask(i, 0, time.Minute); err != nil {
			return nil, errors.Join(err, t.Kill())
		}
	}
	return t, nil
}

// Ask asks process i, and gives the answer and how many were asked before; it tries again until timeout ends.
func (t *Target) Ask(i int, seed uint64, timeout time.Duration) (answer string, count int, err error) {
	line, err := t.Say(i, fmt.Sprintf("ask %d", seed), timeout)
	if err != nil {
		return "", 0, err
	}
	if n, err := fmt.Sscanf(line, "answer %s %d", &answer, &count); n != 2 || err != nil {
		return "", 0, fmt.Errorf("cudasim: the application answered %q", line)
	}
	return answer, count, nil
}

// Say sends process i a line and gives its answer.
func (t *Target) Say(i int, line string, timeout time.Duration) (string, error) {
	path := t.Socket
	if i > 0 {
		path += "." + strconv.Itoa(i)
	}
	end := time.Now().Add(timeout)
	for {
		answer, err := say(path, line, end)
		if err == nil {
			return answer, nil
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(t.log)
			return "", fmt.Errorf("cudasim: process %d of %d does not answer: %w; its log: %s", i, t.PID, err, log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func say(path, line string, end time.Time) (string, error) {
	c, err := net.DialTimeout("unix", path, time.Until(end))
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(end); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// Kill ends all processes and waits until their pids are free.
func (t *Target) Kill() error {
	syscall.Kill(-t.PID, syscall.SIGKILL)
	return t.Gone(time.Minute)
}

// Gone waits until all processes have ended.
func (t *Target) Gone(timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		// What a restore started may have become a child of this process.
		for {
			if pid, err := syscall.Wait4(-t.PID, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if errors.Is(syscall.Kill(-t.PID, 0), syscall.ESRCH) && errors.Is(syscall.Kill(t.PID, 0), syscall.ESRCH) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("cudasim: process %d is still there", t.PID)
		}
	}
}
