package uffd

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// headlessRole makes the test program a process whose first thread ends before the others.
const headlessRole = "headless-role"

func init() {
	if len(os.Args) < 2 || os.Args[1] != headlessRole {
		return
	}
	runtime.LockOSThread() // this is the first
	go func() {
		io.ReadAll(os.Stdin)
		os.Exit(0)
	}()
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A process whose first thread has ended has its mappings all the same.
func TestMappingsOfHeadless(t *testing.T) {
	c := exec.Command("/proc/self/exe", headlessRole)
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	pid := c.Process.Pid
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil || len(text) == 0 {
			break
		}
		if time.Now().After(late) {
			t.Fatal("its first thread does not end")
		}
	}
	if all, err := mappings(pid); len(all) == 0 || err != nil {
		t.Errorf("it has none: %v", err)
	}
}
