package kfdsim

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatcherTellsOnce: the end of a process is told once, also while a copy of its pidfd lasts, as in a child that is
// just being started.
func TestWatcherTellsOnce(t *testing.T) {
	told := make(chan int, 1000)
	w, err := newWatcher(func(pid int) { told <- pid })
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	for fd := range w.pidfds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		defer unix.Close(dup)
	}
	w.mu.Unlock()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // it was killed
	if pid := <-told; pid != cmd.Process.Pid {
		t.Errorf("told of process %d, not %d", pid, cmd.Process.Pid)
	}
	time.Sleep(20 * time.Millisecond)
	w.close()
	if n := len(told); n > 0 {
		t.Errorf("told %d times more", n)
	}
}
