package main

import (
	"errors"
	"os/exec"
	"testing"

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
