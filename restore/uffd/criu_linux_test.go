package uffd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// criuRole makes the test program a main CRIU process as far as it can be seen from here: it connects to the socket in
// a directory and waits in one of the ways below.
const criuRole = "criu-role"

// Ways of a CRIU whose tasks were ended.
const (
	hangs  = "hangs"  // on a futex, for ever
	hears  = "hears"  // leaves the futex, and ends
	tidies = "tidies" // ends after more time than a futex is given
)

// criuStatus is what one that ends by itself ends with.
const criuStatus = 7

func init() {
	if len(os.Args) == 4 && os.Args[1] == criuRole {
		runtime.LockOSThread() // the first thread is looked at
	}
}

func playCRIU(dir, way string) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, SocketName), Net: "unix"})
	if err != nil {
		os.Exit(1)
	}
	defer c.Close()
	wait := func(limit time.Duration) {
		var word uint32
		t := unix.NsecToTimespec(limit.Nanoseconds())
		syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&word)), 0, 0, uintptr(unsafe.Pointer(&t)), 0, 0)
	}
	switch way {
	case hangs:
		for {
			wait(time.Hour)
		}
	case hears:
		wait(hungTime / 2)
	case tidies:
		t := unix.NsecToTimespec((hungTime * 3 / 2).Nanoseconds())
		for unix.Nanosleep(&t, &t) == unix.EINTR {
		}
	}
	os.Exit(criuStatus)
}

// standIn is such a process.
func standIn(t *testing.T, dir, way string) (cmd *exec.Cmd, end <-chan error) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", criuRole, dir, way)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, done
}

// served serves a restore of one task that does not come.
func served(t *testing.T, dir string) (s *Server, stop context.CancelFunc, end <-chan error) {
	t.Helper()
	plan := &Plan{Tasks: []PlanTask{{PID: 1 << 30}}}
	s, err := Listen(Options{Dir: dir, Plan: plan, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, emptySupplier{}) }()
	return s, stop, done
}

func come(t *testing.T, s *Server) {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); !s.connected.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("nobody connects")
		}
	}
}

// A CRIU that waits on a futex for tasks that were ended is ended; one that ends by itself tells why.
func TestCRIUOfGivenUpRestore(t *testing.T) {
	for _, c := range []struct {
		way    string
		killed bool
	}{{hangs, true}, {hears, false}, {tidies, false}} {
		t.Run(c.way, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, stop, end := served(t, dir)
			cmd, ended := standIn(t, dir, c.way)
			come(t, s)
			stop()
			begin := time.Now()
			if err := <-end; !errors.Is(err, ErrRestore) {
				t.Errorf("served until %v", err)
			}
			if took := time.Since(begin); took > hungTime {
				t.Errorf("who waits for the server is told after %v", took)
			}
			checkEnd(t, cmd, ended, c.killed)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkEnd has a stand-in end soon, killed or by itself.
func checkEnd(t *testing.T, cmd *exec.Cmd, ended <-chan error, killed bool) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(hungTime + time.Minute):
		t.Fatal("criu hangs")
	}
	st := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if st.Signaled() != killed || !killed && st.ExitStatus() != criuStatus {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}

// One task is killed for want of its memory while CRIU waits for it: the restore fails.
func TestCRIUOfKilledTask(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, end := served(t, dir)
	cmd, ended := standIn(t, dir, hangs)
	come(t, s)
	task := exec.Command("sleep", "600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer task.Wait()
	p := &process{task.Process.Pid, pidfdOf(t, task.Process.Pid)}
	s.kill(&memory{srv: s, fd: -1, task: p, name: "x", unsettled: true}, errors.New("no memory for its pages"))
	checkEnd(t, cmd, ended, true)
	if err := <-end; !errors.Is(err, ErrRestore) {
		t.Errorf("served until %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A restore that was finished leaves CRIU alone, whatever it waits for.
func TestCRIUOfFinishedRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, stop, end := served(t, dir)
	cmd, _ := standIn(t, dir, hangs)
	come(t, s)
	s.finished.Store(true)
	stop()
	<-end
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("criu: %v", err)
	}
}

// A peer that is this very process is no CRIU.
func TestPeerIsThisProcess(t *testing.T) {
	dir := t.TempDir()
	s, stop, end := served(t, dir)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	come(t, s)
	stop()
	begin := time.Now()
	<-end
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > hungTime {
		t.Errorf("it was waited for for %v", took)
	}
}

// Where the guardian is killed its provider ends CRIU, unless CRIU was done with the tasks.
func TestProviderEndsCRIU(t *testing.T) {
	for _, done := range []bool{false, true} {
		dir := t.TempDir()
		s, stop, end := served(t, dir)
		cmd, ended := standIn(t, dir, hangs)
		come(t, s)
		held := newHeldFDs(slog.New(slog.DiscardHandler))
		criu, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		held.watch(&packet{kind: kindCRIU, fds: []int{criu}})
		if done {
			held.watch(&packet{kind: kindCRIU})
		}
		held.outlast()
		if !done {
			checkEnd(t, cmd, ended, true)
		} else if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("criu: %v", err)
		}
		held.drop()
		cmd.Process.Kill()
		stop()
		<-end
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
