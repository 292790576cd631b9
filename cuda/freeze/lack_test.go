package freeze

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A stopped process is continued when there are descriptors to look at it: it is not taken for one that has ended. Nor
// is one that runs taken for one that stands still.
func TestWithoutDescriptors(t *testing.T) {
	runs, stopped := exec.Command("sleep", "600"), exec.Command("sleep", "600")
	for _, c := range []*exec.Cmd{runs, stopped} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
	}
	if err := Stop(stopped.Process.Pid); err != nil {
		t.Fatal(err)
	}
	lack := func(call func()) {
		end := descriptors.Lack(t)
		time.AfterFunc(20*time.Millisecond, end)
		call()
		end()
	}
	pid := runs.Process.Pid
	lack(func() {
		if s := state(pid, pid); s == "X" {
			t.Error("a thread that runs has ended")
		}
	})
	pid = stopped.Process.Pid
	lack(func() {
		if err := ContinueAll([]int{pid}); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(limit); state(pid, pid) == "T"; time.Sleep(pause) {
		if time.Now().After(end) {
			_ = unix.Kill(pid, unix.SIGCONT)
			t.Fatal("a stopped process was left so")
		}
	}
}
