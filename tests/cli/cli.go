// Package cli drives the gpucr-fs program as a user does: by its arguments, its output and its exit codes. It holds all
// that tests and benchmarks know of the command line.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// Exit codes of the program.
const (
	OK      = 0
	Failed  = 1
	Usage   = 2
	Partial = 3
	NoStore = 10
	InUse   = 11
	Corrupt = 12
)

// Program is the path of a gpucr-fs binary.
type Program string

// Build compiles the program into dir.
func Build(dir string) (Program, error) {
	bin := filepath.Join(dir, "gpucr-fs")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/gpucr/gpucr-fs/cmd/gpucr-fs").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build gpucr-fs: %w\n%s", err, out)
	}
	return Program(bin), nil
}

// Error is a run that did not exit with 0.
type Error struct {
	Args           []string
	Code           int // -1: killed by a signal
	Stdout, Stderr string
}

func (e *Error) Error() string {
	return fmt.Sprintf("gpucr-fs %s: exit %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Stderr))
}

// Code gives the exit code behind an error of this package: 0 for nil, -1 where the program was killed or did not run.
func Code(err error) int {
	var e *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	}
	return -1
}

// Command prepares a run without starting it, for callers that kill it on its way.
func (p Program) Command(args ...string) *exec.Cmd { return exec.Command(string(p), args...) }

// Run runs the program and gives its standard output. The error is an *Error when it ran and did not exit with 0.
func (p Program) Run(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, string(p), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A daemon that outlives its parent keeps the pipes open; do not wait for it.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout.String(),
			&Error{Args: args, Code: exit.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return stdout.String(), err
}

// JSON runs the program with --json and decodes its standard output into v, also when it exits with another code than
// 0.
func (p Program) JSON(ctx context.Context, v any, args ...string) error {
	out, err := p.Run(ctx, append(args, "--json")...)
	var e *Error
	if err != nil && !errors.As(err, &e) {
		return err
	}
	if jsonErr := json.Unmarshal([]byte(out), v); jsonErr != nil && err == nil {
		return fmt.Errorf("gpucr-fs %s --json printed %q: %w", strings.Join(args, " "), out, jsonErr)
	}
	return err
}

// States gives the state of every checkpoint that ls lists.
func (p Program) States(ctx context.Context, store string) (map[string]index.State, error) {
	var res struct{ Checkpoints []index.Info }
	if err := p.JSON(ctx, &res, "ls", "--fast", store); err != nil {
		return nil, err
	}
	states := map[string]index.State{}
	for _, i := range res.Checkpoints {
		states[i.Name] = i.State
	}
	return states, nil
}

// Daemon is a foreground mount of a store.
type Daemon struct {
	cmd    *exec.Cmd
	mnt    string
	stderr bytes.Buffer
	exited chan struct{} // closed when it has ended and err is set
	err    error
}

// StartServing starts the daemon of a store without waiting until it serves.
func (p Program) StartServing(store, mnt string, args ...string) (*Daemon, error) {
	d := &Daemon{cmd: p.Command(append([]string{"mount", "-f", store, mnt}, args...)...), mnt: mnt,
		exited: make(chan struct{})}
	d.cmd.Stderr = &d.stderr
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(d.exited)
		d.err = d.cmd.Wait()
	}()
	return d, nil
}

// Serve starts the daemon of a store, mounted at mnt, and returns when it serves.
func (p Program) Serve(store, mnt string, args ...string) (*Daemon, error) {
	d, err := p.StartServing(store, mnt, args...)
	if err != nil {
		return nil, err
	}
	late := time.After(time.Minute)
	for {
		if _, err := os.Stat(filepath.Join(mnt, ".checkpoints")); err == nil {
			return d, nil
		}
		select {
		case <-d.exited:
			return nil, fmt.Errorf("gpucr-fs mount -f: %w: %s", d.err, &d.stderr)
		case <-late:
			return nil, errors.Join(fmt.Errorf("gpucr-fs mount -f does not serve: %s", &d.stderr), d.Kill())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// PID gives the daemon's process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// PeakMB gives the largest resident memory of the daemon so far, 0 when it has ended.
func (d *Daemon) PeakMB() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kb float64
			fmt.Sscan(rest, &kb)
			return kb / 1024
		}
	}
	return 0
}

// Kill ends the daemon with SIGKILL and waits for its end. The stale mount stays. A daemon that has a file of its own
// mount open, or a request to it under way, cannot end, since its last thread waits for an answer from itself; that is
// an error, and the mount is aborted.
func (d *Daemon) Kill() error {
	err := d.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-d.exited:
		return err
	case <-time.After(time.Minute):
		err = errors.Join(err, errors.New("the killed daemon does not end: it waits for its own mount"),
			syscall.Unmount(d.mnt, syscall.MNT_FORCE|syscall.MNT_DETACH))
		<-d.exited
		return err
	}
}

// Stop ends the daemon with SIGTERM, which unmounts, and gives an error when it did not end with exit code 0.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.exited:
	case <-time.After(time.Minute):
		return errors.Join(errors.New("gpucr-fs mount -f does not end on SIGTERM"), d.Kill())
	}
	if d.err != nil {
		return fmt.Errorf("gpucr-fs mount -f: %w: %s", d.err, &d.stderr)
	}
	return nil
}
