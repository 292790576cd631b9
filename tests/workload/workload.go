// Package workload builds, starts and watches the process that tests and benchmarks checkpoint: threads, a child, and
// memory of a chosen make-up whose every byte the process itself keeps verifying. See src/workload.c for what it does
// and what its status means.
package workload

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed src/workload.c
var source []byte

// statusSize is the fixed length in bytes of a status file, as in src/workload.c.
const statusSize = 256

// Build compiles the workload into dir and gives the program's path. It needs a C compiler and a static libc.
func Build(dir string) (string, error) {
	src, bin := filepath.Join(dir, "workload.c"), filepath.Join(dir, "workload")
	if err := os.WriteFile(src, source, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o", bin, src,
		"-lm").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile the workload: %w\n%s", err, out)
	}
	return bin, nil
}

// Process is a running workload. It outlives being dumped and restored: what counts is its pid and its status file.
type Process struct {
	PID    int
	status string
	// closed when the process that Start started has ended and was reaped; restored ones have other parents
	exited chan struct{}
}

// Start runs the program at bin, detached from the terminal, with its status in dir; args are further flags of
// src/workload.c. It returns when all memory is filled and verified once.
func Start(bin, dir string, args ...string) (*Process, error) {
	log, err := os.Create(filepath.Join(dir, "workload.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{status: filepath.Join(dir, "status"), exited: make(chan struct{})}
	cmd := exec.Command(bin, append([]string{"--status", p.status}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.PID = cmd.Process.Pid
	var ended error
	go func() {
		defer close(p.exited)
		ended = cmd.Wait()
	}()
	for {
		if st, err := p.Status(); err == nil && st.Passes > 0 {
			return p, nil
		}
		select {
		case <-p.exited:
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("the workload ended before it was ready: %w: %s", ended, text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Status is what a process last said of itself.
type Status struct {
	OK          bool
	Text        string // the whole line, as "corrupt at 0x7f… in heap passes=…"
	Passes      int64  // complete verifications of all memory
	ChildPasses int64
	Bytes       int64
}

// Status reads the status file. The error is set when there is none, or the process has not written it since Blank.
func (p *Process) Status() (Status, error) {
	b, err := os.ReadFile(p.status)
	if err != nil {
		return Status{}, err
	}
	s := Status{Text: strings.TrimSpace(string(b))}
	verdict, rest, found := strings.Cut(s.Text, "passes=")
	if !found {
		return s, errors.New("no status yet")
	}
	var ticks int64
	if _, err := fmt.Sscanf("passes="+rest, "passes=%d child_passes=%d ticks=%d bytes=%d", &s.Passes, &s.ChildPasses,
		&ticks, &s.Bytes); err != nil {
		return s, fmt.Errorf("status %q: %w", s.Text, err)
	}
	s.OK = strings.TrimSpace(verdict) == "ok"
	return s, nil
}

// Blank wipes the status file, keeping its size, so that the next status read is one written after this moment.
func (p *Process) Blank() error {
	f, err := os.OpenFile(p.status, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{' '}, statusSize), 0)
	return errors.Join(err, f.Close())
}

// Verified waits until parent and child have each verified all of their memory at least once from now on, and gives an
// error when either finds damage or does not get that far within the time.
func (p *Process) Verified(timeout time.Duration) error {
	if err := p.Blank(); err != nil {
		return err
	}
	var first *Status
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		st, err := p.Status()
		if err != nil {
			continue
		}
		if !st.OK {
			return errors.New(st.Text)
		}
		if first == nil {
			first = &st
		}
		// The round under way when first was read began before it; the one after that is complete evidence.
		if st.Passes >= first.Passes+2 && st.ChildPasses >= first.ChildPasses+2 {
			return nil
		}
	}
	return fmt.Errorf("no complete verification within %v: %s", timeout, p.text())
}

func (p *Process) text() string {
	st, _ := p.Status()
	if st.Text == "" {
		return "the process says nothing"
	}
	return st.Text
}

// Kill ends the process and waits until its pids are free again.
func (p *Process) Kill() error {
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return p.Gone(30 * time.Second)
}

// Gone waits until the process and its child are reaped, as after a dump that ends them. A restored process, and any
// child, is for init to reap. Process and group have the same number, and it is not free for a restore before both are
// gone.
func (p *Process) Gone(timeout time.Duration) error {
	late := time.After(timeout)
	select {
	case <-p.exited:
	case <-late:
		return fmt.Errorf("process %d is still there after %v", p.PID, timeout)
	}
	for !errors.Is(syscall.Kill(-p.PID, 0), syscall.ESRCH) {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-late:
			return fmt.Errorf("process group %d is still there after %v", p.PID, timeout)
		}
	}
	return nil
}
