package wire

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process that was killed ends, also while it has not: it gives its memory back first.
func TestFate(t *testing.T) {
	runtime.LockOSThread() // which traces
	defer runtime.UnlockOSThread()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	wait := func() {
		t.Helper()
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	wait()
	p, err := OpenProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	fate := func(of string, p *Process, want Fate) {
		t.Helper()
		if got := p.Fate(); got != want {
			t.Errorf("fate %d of %s, want %d", got, of, want)
		}
	}
	fate("one that stands still", p, Lives)
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACEEXIT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait() // it stops where it begins to exit
	fate("one that was killed and has not ended", p, Ends)
	if err := syscall.PtraceDetach(pid); err != nil {
		t.Fatal(err)
	}
	wait()
	fate("one that has ended", p, Ends)
	fate("one that nobody holds", nil, Unknown)
}

// A dump does not begin where the daemon could not tell later whether the process lives.
func TestDumpNeedsAHoldOnItsProcess(t *testing.T) {
	for pid, what := range map[int]string{0: "not told", 1 << 30: "that is not there"} {
		if first, err := HoldDumped(pid); first != nil || err != nil {
			t.Errorf("a process %s: %v, %v", what, first, err)
		}
	}
	end := descriptors.Lack(t)
	_, err := HoldDumped(1)
	end()
	if !errors.Is(err, unix.EMFILE) || index.HintOf(err) == "" {
		t.Errorf("without descriptors: %v, hint %q", err, index.HintOf(err))
	}
}
