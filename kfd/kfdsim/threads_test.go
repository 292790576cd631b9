package kfdsim

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors of more threads than are kept are found, and none of a thread that has ended.
func TestDescriptorsOfThreads(t *testing.T) {
	var known threads
	t.Cleanup(known.close)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	same := func(tid int) error {
		t.Helper()
		fd, err := known.getFD(tid, 3)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var has, want unix.Stat_t
		if err := unix.Fstat(fd, &has); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fstat(int(file.Fd()), &want); err != nil {
			t.Fatal(err)
		}
		if has.Ino != want.Ino {
			t.Errorf("the descriptor of %d is another file", tid)
		}
		return nil
	}
	begin := func() (pid int, end func()) {
		t.Helper()
		cmd := exec.Command("cat")
		cmd.ExtraFiles = []*os.File{file}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid, func() {
			in.Close()
			cmd.Wait()
		}
	}
	var pids []int
	for range keepThreads + 2 {
		pid, end := begin()
		t.Cleanup(end)
		pids = append(pids, pid)
	}
	gone, end := begin()
	for _, pid := range append(append(pids, pids...), gone, gone) {
		if err := same(pid); err != nil {
			t.Error(err)
		}
	}
	end()
	if err := same(gone); err == nil {
		t.Error("a process that has ended has a descriptor")
	}
	if len(known.last) > keepThreads {
		t.Errorf("%d are kept", len(known.last))
	}
}
