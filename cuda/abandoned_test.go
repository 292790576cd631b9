package cuda_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// When the program that asked for a suspension ends, the processes run on.
func TestAbandoned(t *testing.T) {
	a := target(t, cudasim.Options{Processes: 2})
	before := ask(t, a, 1)
	c := client(t)
	if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if after := ask(t, a, 1); after != before {
		t.Errorf("the process answers %s, and %s before", after, before)
	}
	if _, err := c.State(ctx(t), a.PID); err == nil {
		t.Error("a closed client answers")
	}
}

// A process that somebody traces keeps no other one from its GPU.
func TestAbandonedTraced(t *testing.T) {
	a := target(t, cudasim.Options{Processes: 4})
	c, err := cuda.Start(cuda.Options{Program: holder, Library: sim.Library,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Suspend(ctx(t), a.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	procs := s.Processes()
	traced := procs[len(procs)-1].PID
	runtime.LockOSThread() // who traces is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(traced); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	look := client(t)
	for _, p := range procs {
		for end := time.Now().Add(10 * time.Second); p.PID != traced; time.Sleep(10 * time.Millisecond) {
			if state, err := look.State(ctx(t), p.PID); err == nil && state == cuda.Running {
				break
			}
			if time.Now().After(end) {
				t.Errorf("process %d does not get its GPU back while process %d is traced", p.PID, traced)
				break
			}
		}
	}
	// A stopped process that was seized is detached from in its stop.
	var status unix.WaitStatus
	err = unix.PtraceInterrupt(traced)
	if err == nil {
		_, err = unix.Wait4(traced, &status, unix.WALL, nil)
	}
	if err = errors.Join(err, unix.PtraceDetach(traced)); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	wantState(t, look, traced, cuda.Running)
}

// A gpucr-cuda that is being killed takes no more requests before its end is known. It has a successor all the same.
func TestDying(t *testing.T) {
	a := target(t, cudasim.Options{})
	before := ask(t, a, 0)
	program := filepath.Join(t.TempDir(), "gpucr-cuda")
	// The first one's standard output stays open for a while when it is gone.
	script := fmt.Sprintf("#!/bin/sh\nmkdir $0.first 2>/dev/null || exec %[1]s \"$@\"\nexec 3<&0\n"+
		"%[1]s \"$@\" <&3 3<&- &\necho $! >$0.pid\nexec <&- 3<&-\nwait\nsleep 0.5\n", holder)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := cuda.Start(cuda.Options{Program: program, Library: sim.Library,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Suspend(ctx(t), a.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
	if err := s.Undo(); err != nil {
		t.Fatal(err)
	}
	wantState(t, client(t), a.PID, cuda.Running)
	if after := ask(t, a, 0); after != before {
		t.Errorf("answers %s, and %s before", after, before)
	}
}
