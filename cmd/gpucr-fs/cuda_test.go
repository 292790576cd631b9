package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process that is to be ended is ended, and not taken for one that is gone, where no descriptor is left to look for
// its descendants. They may live on, which is told.
func TestEndTreeWithoutDescriptors(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	end := descriptors.Lack(t)
	gone := over(cmd.Process.Pid)
	err := endTree(cmd.Process.Pid)
	end()
	if gone {
		t.Error("a process that lives passes for one that has ended")
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("told: %v", err)
	}
	if !over(cmd.Process.Pid) {
		t.Error("the process lives on")
	}
}

// A dump can wait until a process has given back the memory that its VRAM was in, which it would have otherwise. It
// waits for nobody who gives nothing back for long, who is stopped or who has ended, and can be given up.
func TestAwaitRelease(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "gpucr-release") // its only thread has that name
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name               string
		takes, least, most time.Duration
		signal             syscall.Signal // sent after a second
		cancel             bool           // after a second
	}{
		{"ends", 3 * time.Second, time.Second, 4 * stalled, 0, false},
		{"stalls", time.Minute, stalled, 4 * stalled, 0, false},
		{"is stopped", time.Minute, time.Second, stalled, syscall.SIGSTOP, false},
		{"is killed", time.Minute, time.Second, stalled, syscall.SIGKILL, false},
		{"is given up", time.Minute, time.Second, stalled, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(program, fmt.Sprint(tc.takes.Seconds()))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				cmd.Wait()
				close(ended)
			}()
			defer func() {
				cmd.Process.Kill()
				<-ended
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun := time.Now()
			defer time.AfterFunc(time.Second, func() {
				if tc.signal != 0 {
					cmd.Process.Signal(tc.signal)
				}
				if tc.cancel {
					cancel()
				}
			}).Stop()
			err := new(nvidia).awaitRelease(ctx, cmd.Process.Pid)
			if errors.Is(err, context.Canceled) != tc.cancel || !tc.cancel && err != nil {
				t.Errorf("waited for: %v", err)
			}
			if took := time.Since(begun); took < tc.least || took > tc.most {
				t.Errorf("a thread that takes %v was waited for for %v", tc.takes, took)
			}
			left := cmd.Process.Signal(syscall.Signal(0)) == nil
			if tc.signal == 0 && left != (tc.takes > tc.most) && !tc.cancel {
				t.Errorf("the process is left: %v", left)
			}
		})
	}
	if err := (*nvidia)(nil).awaitRelease(t.Context(), os.Getpid()); err != nil {
		t.Errorf("of no GPU: %v", err)
	}
}
