package uffd

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// ownUffd returns a userfaultfd of which the test keeps no copy: who closes it lets go of what is registered.
func ownUffd(t *testing.T) int {
	t.Helper()
	kept := newUffd(t)
	fd, err := unix.Dup(kept)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if err := unix.Dup3(other.fd, kept, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return fd
}

// lackingAll is the space of a memory that lacks all of mem.
func lackingAll(mem []byte) *space {
	at := addrOf(mem)
	s := newSpace(1, nil, []*piece{{start: at, end: at + uint64(len(mem))}})
	s.areas.install(at, at+uint64(len(mem)), 0)
	return s
}

// readsZeros reports whether a process can read a page that it lacks.
func readsZeros(pid int, mem []byte) bool {
	got := make([]byte, pageSize)
	for i := range got {
		got[i] = 1
	}
	local := []unix.Iovec{{Base: &got[0], Len: pageSize}}
	remote := []unix.RemoteIovec{{Base: uintptr(addrOf(mem)), Len: pageSize}}
	n, err := unix.ProcessVMReadv(pid, local, remote, 0)
	return err == nil && n > 0
}

// A process that is not found when a restore is given up goes on, and forks. Neither it nor its child reads zeros for
// what it lacks.
func TestOrphanOfGivenUpRestore(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	m := &memory{srv: s, fd: fd, name: "x+", space: lackingAll(mem)}
	kick, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	m.wakeup = kick
	pid := forked(t)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	s.halted.Store(true) // the fork has not been read
	s.start(m)
	s.surrender(errors.New("given up"), time.Now())
	s.runs.Wait()
	child := <-pid
	defer bury(child)
	for _, p := range []int{os.Getpid(), child} {
		if readsZeros(p, mem) {
			t.Errorf("a process (%d of %d) reads zeros for what it lacks", p, os.Getpid())
		}
	}
}

// emptySupplier brings nothing.
type emptySupplier struct{ Supplier }

func (emptySupplier) Demand(prefetch.Range, bool) {}

// A task that is killed for want of its memory leaves a process that shares it. That does not read zeros.
func TestKilledTaskSharesItsMemory(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	task := exec.Command("sleep", "600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer task.Process.Kill()
	pidfd, err := unix.PidfdOpen(task.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	m := &memory{srv: s, fd: fd, task: &process{task.Process.Pid, pidfd}, name: "x", space: lackingAll(mem)}
	defer m.task.close()
	if m.wakeup, err = newEventFD(); err != nil {
		t.Fatal(err)
	}
	s.supplier = emptySupplier{} // the page may be wanted before the task is killed
	s.finished.Store(true)
	s.start(m)
	zeros := make(chan bool)
	go func() { zeros <- readsZeros(os.Getpid(), mem) }()
	s.kill(m, errors.New("no memory for its pages"))
	task.Wait()
	s.runs.Wait()
	if <-zeros || readsZeros(os.Getpid(), mem) {
		t.Error("a process that has a killed task's memory reads zeros for what is missing")
	}
	if n := len(s.Report().Killed); n != 1 {
		t.Errorf("%d tasks are reported as killed", n)
	}
}
