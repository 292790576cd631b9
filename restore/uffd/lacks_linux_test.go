package uffd

import (
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// pidfdOf returns a handle of a process.
func pidfdOf(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// forked has a thread of this process fork, with memory that a userfaultfd reports of. The channel gives the child's
// pid when its fork has been reported. Until then the thread keeps its processor of Go's runtime, and a collection of
// garbage would wait for it.
func forked(t *testing.T) <-chan int {
	t.Helper()
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(4, procs))
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		runtime.GOMAXPROCS(procs)
	})
	k := &keeping{guardian: unix.PollFd{Fd: int32(pidfdOf(t, os.Getpid())), Events: unix.POLLIN},
		timeout: unix.Timespec{Sec: 2}}
	pid := make(chan int)
	go func() { p, _ := forkKeeper(k); pid <- p }()
	return pid
}

func bury(pid int) {
	unix.Kill(pid, unix.SIGKILL)
	unix.Wait4(pid, nil, 0, nil)
}

// A task forks while there is no descriptor left for the child's memory: both are served when there is one again.
func TestForkWithoutDescriptor(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.Default(), changed: make(chan struct{})}
	m := &memory{srv: s, fd: fd, task: &process{os.Getpid(), pidfdOf(t, os.Getpid())}, name: "x",
		space: newSpace(0, nil, nil)}
	pid := forked(t)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	buf := make([]message, 4)
	release := descriptors.Lack(t)
	events, err := m.read(buf)
	_, errno := uffdZero(fd, addrOf(mem), pageSize)
	release()
	if events || err != nil || m.gone.Load() {
		t.Errorf("without a descriptor: events %v, %v, given up %v", events, err, m.gone.Load())
	}
	if errno != unix.EAGAIN {
		t.Errorf("a fill while the fork waits: %v", errno)
	}
	for late := time.Now().Add(5 * time.Second); !events; time.Sleep(time.Millisecond) {
		if events, err = m.read(buf); err != nil || time.Now().After(late) {
			t.Fatalf("the fork is not reported any more: %v", err)
		}
	}
	child := <-pid
	live := s.memories()
	if len(live) != 1 || uffdProbe(live[0].fd, addrOf(mem), pageSize) != unix.EINVAL {
		t.Errorf("the child is not served: %d memories", len(live))
	}
	bury(child)
	s.runs.Wait()
}

// A child for whose memory there is one descriptor, and none for anything else, is served.
func TestForkWithOneDescriptor(t *testing.T) {
	s := &Server{log: slog.Default(), changed: make(chan struct{})}
	parent := &memory{srv: s, task: &process{os.Getpid(), pidfdOf(t, os.Getpid())}, name: "x",
		space: newSpace(0, nil, nil)}
	fd, err := unix.Dup(newUffd(t))
	if err != nil {
		t.Fatal(err)
	}
	release := descriptors.Lack(t)
	s.adopt(parent, fd)
	live := len(s.memories())
	release()
	if live != 1 {
		t.Error("the child is not served: its page faults would wait for ever")
	}
	s.stopping.Store(true)
	s.runs.Wait()
}

// What cannot be looked at without a descriptor is neither taken for gone nor for another's child.
func TestPidsWithoutDescriptor(t *testing.T) {
	pidfd := pidfdOf(t, os.Getpid())
	release := descriptors.Lack(t)
	time.AfterFunc(10*lackPause, release)
	if _, err := parentOf(os.Getpid()); !prefetch.IsLack(err) {
		t.Errorf("the parent without a descriptor: %v", err)
	}
	if pid, ok := pidOf(pidfd); !ok || pid != os.Getpid() {
		t.Errorf("the process of a pidfd is %d, %v", pid, ok)
	}
	if up, err := parentOf(1 << 30); up != 0 || err != nil {
		t.Errorf("a process that is not there has the parent %d, %v", up, err)
	}
}

// Nor has a task that is to be killed no children, or come to a stop, because there is no descriptor to look: a child
// whose parent has been killed is not found any more.
func TestDescendantsWithoutDescriptor(t *testing.T) {
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	release := descriptors.Lack(t)
	busy := runs(os.Getpid())
	time.AfterFunc(10*lackPause, release)
	below := descendants([]int{os.Getpid()})
	release()
	if !busy {
		t.Error("a process whose threads could not be listed is taken for one that has stopped")
	}
	if !slices.Contains(below, child.Process.Pid) {
		t.Errorf("below are %v, without %d", below, child.Process.Pid)
	}
}

// A tree of which a part cannot be seen now is not taken for the whole one.
func TestTreeWithoutDescriptor(t *testing.T) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	release := descriptors.Lack(t)
	_, err = treeOf(entries)
	release()
	if !prefetch.IsLack(err) {
		t.Errorf("processes that could not be read: %v", err)
	}
	if seen, err := treeOf(entries); err != nil || seen[os.Getpid()] != os.Getppid() {
		t.Errorf("afterwards: %v, %d processes", err, len(seen))
	}
}

// A task whose page faults cannot be read is ended: it would read zeros for what it lacks.
func TestUnreadableFaults(t *testing.T) {
	task := exec.Command("sleep", "600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer task.Process.Kill()
	folder, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0) // it cannot be read like a userfaultfd
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{log: slog.Default(), changed: make(chan struct{})}
	m := &memory{srv: s, fd: folder, task: &process{task.Process.Pid, pidfdOf(t, task.Process.Pid)}, name: "x",
		space: newSpace(0, nil, nil)}
	if m.wakeup, err = newEventFD(); err != nil {
		t.Fatal(err)
	}
	s.start(m)
	dead := make(chan error, 1)
	go func() { dead <- task.Wait() }()
	select {
	case err := <-dead:
		if !strings.Contains(err.Error(), "killed") {
			t.Errorf("the task ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the task goes on")
		task.Process.Kill()
		<-dead
	}
	s.stopping.Store(true)
	s.runs.Wait()
	if k := s.Report().Killed; len(k) != 1 || !strings.Contains(k[0].Reason, "read its page faults") {
		t.Errorf("reported as killed: %+v", k)
	}
}

// A guardian without a descriptor starts the successor of its provider when there is one again: that is no try that has
// failed.
func TestSuccessorWithoutDescriptor(t *testing.T) {
	setupFile, err := os.CreateTemp(t.TempDir(), "setup")
	if err != nil {
		t.Fatal(err)
	}
	defer setupFile.Close()
	log := slog.New(slog.DiscardHandler)
	g := &guardian{log: log, setupFile: setupFile, outbox: newOutbox(), keeper: &keeper{},
		setup:  &setup{RunBytes: pageSize, Slots: 2, Successor: []string{"successor", keptRole}},
		server: &Server{log: log}}
	defer g.outbox.close()
	release := descriptors.Lack(t)
	done := make(chan error, 1)
	go func() { done <- g.succeed(t.Context()) }()
	select {
	case err := <-done:
		release()
		t.Fatalf("given up while there was no descriptor: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	release()
	if err := <-done; err != nil || g.failures != 1 {
		t.Fatalf("%v, after %d tries", err, g.failures)
	}
	g.detach(g.provider)
	for late := time.Now().Add(time.Minute); len(descendants([]int{os.Getpid()})) > 0; {
		if time.Now().After(late) {
			t.Fatal("the successor goes on")
		}
		time.Sleep(time.Millisecond)
	}
}

// A successor may try again as long as nobody has read that the guardian accepts it.
func TestUntaken(t *testing.T) {
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWire(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	defer theirs.Close()
	fd := int(theirs.Fd())
	if err := w.send(&packet{kind: kindHello}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !Untaken(fd) {
			t.Error("what the guardian has said is gone")
		}
	}
	if _, err := unix.Read(fd, make([]byte, maxPacket)); err != nil {
		t.Fatal(err)
	}
	if err := w.send(&packet{kind: kindSweep}); err != nil {
		t.Fatal(err)
	}
	if Untaken(fd) {
		t.Error("what was taken can be taken once more")
	}
	unix.Read(fd, make([]byte, maxPacket))
	w.close()
	if Untaken(fd) {
		t.Error("a guardian that is gone can be taken over")
	}
}
