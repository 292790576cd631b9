package uffd

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// zeroSupplier brings zeros, at once.
type zeroSupplier struct {
	Supplier
	s        *Server
	demanded chan prefetch.Range
}

func (z *zeroSupplier) Demand(r prefetch.Range, _ bool) {
	select {
	case z.demanded <- r:
	default:
	}
	go z.s.zero(r)
}

// While a fork waits for a descriptor its process is passed over, so that the others are served. What it was to get
// meanwhile is asked for again.
func TestLackLeavesOthersServed(t *testing.T) {
	fd := ownUffd(t)
	mem := registered(t, fd, 4)
	s := &Server{log: slog.New(slog.DiscardHandler), changed: make(chan struct{})}
	s.supplier = &zeroSupplier{s: s, demanded: make(chan prefetch.Range, 1)}
	kick, err := newEventFD()
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{srv: s, fd: fd, name: "x+", space: lackingAll(mem), wakeup: kick}
	pid := forked(t)
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	got := make(chan bool, 1)
	go func() { got <- readsZeros(os.Getpid(), mem) }()
	release := descriptors.Lack(t)
	s.start(m)
	<-s.supplier.(*zeroSupplier).demanded // its page has come while it could not be filled in
	filled := make(chan struct{})
	go func() { s.zero(prefetch.Range{Len: 4 * pageSize}); close(filled) }()
	select {
	case <-filled:
	case <-time.After(time.Minute):
		t.Error("nobody is served while a fork waits for a descriptor")
	}
	if n := m.space.left.Load(); n != 4 {
		t.Errorf("%d pages are still to come, of 4 that could not be filled in", n)
	}
	release()
	child := <-pid
	select {
	case <-got:
	case <-time.After(time.Minute):
		t.Error("a page that came while the fork waited is not asked for again")
	}
	s.zero(prefetch.Range{Len: 4 * pageSize})
	<-filled
	bury(child)
	s.finished.Store(true)
	m.wakeup.set()
	s.runs.Wait()
}

// A packet whose descriptors the receiver has no room for is not taken for one without.
func TestPacketWithoutRoomForDescriptors(t *testing.T) {
	a, b := wirePair(t)
	sent := packet{kind: kindMemory, id: 7, fds: []int{pidfdOf(t, os.Getpid()), pidfdOf(t, os.Getppid())}}
	if err := a.send(&sent); err != nil {
		t.Fatal(err)
	}
	if err := a.send(&packet{kind: kindDemand, id: 8}); err != nil {
		t.Fatal(err)
	}
	release := descriptors.Lack(t)
	time.AfterFunc(5*lackPause, release)
	p, err := b.receive()
	release()
	defer closeAll(p.fds)
	if err != nil || p.id != 7 || len(p.fds) != 2 {
		t.Errorf("packet %d came with %d of 2 descriptors, %v", p.id, len(p.fds), err)
	}
	if p, err := b.receive(); err != nil || p.id != 8 || len(p.fds) != 0 {
		t.Errorf("the next is %d, %v, with %d descriptors", p.id, err, len(p.fds))
	}
}

// connWithTask gives a connection over which a task has come: number 7, with a userfaultfd, which this process is.
func connWithTask(t *testing.T) *conn {
	t.Helper()
	dir := t.TempDir()
	sock, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.close() })
	criu, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { criu.Close() })
	c, err := sock.accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close() })
	if _, err := criu.Write(binary.NativeEndian.AppendUint32(nil, 7)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := criu.WriteMsgUnix([]byte{0}, unix.UnixRights(newUffd(t)), nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// A task that has come in time is taken, however late it is read: nobody else would end it.
func TestTaskAfterTheDeadline(t *testing.T) {
	c := connWithTask(t)
	if err := c.c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	pid, task, fd, err := c.task()
	if err != nil || pid != 7 {
		t.Fatalf("task %d, %v", pid, err)
	}
	task.close()
	unix.Close(fd)
	if _, _, _, err := c.task(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no further task has come: %v", err)
	}
}

// A task that comes while there is no room for its userfaultfd is waited for: closed, it would read as zeros.
func TestTaskWithoutRoomForItsDescriptor(t *testing.T) {
	c := connWithTask(t)
	before, err := userfaultfds("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	release := descriptors.Lack(t)
	time.AfterFunc(5*lackPause, release)
	pid, task, fd, err := c.task()
	release()
	if err != nil || pid != 7 || task.pid != os.Getpid() {
		t.Fatalf("task %d, %+v, %v", pid, task, err)
	}
	defer task.close()
	defer unix.Close(fd)
	if errno := uffdProbe(fd, pageSize, pageSize); errno != unix.ENOENT {
		t.Errorf("its userfaultfd says %v", errno)
	}
	after, err := userfaultfds("/proc/self/fd")
	if err != nil || len(after) != len(before)+1 {
		t.Errorf("there are %d userfaultfds, after %d: one that is left over keeps the task waiting; %v",
			len(after), len(before), err)
	}
}

// A provider that cannot talk with its guardian any more leaves the tasks to it.
func TestProviderThatLacksLeavesTasks(t *testing.T) {
	fa, fb, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer fb.Close()
	w, err := newWire(fa)
	if err != nil {
		t.Fatal(err)
	}
	mem, f, err := makeSlots(pageSize, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer mem.close()
	log := slog.New(slog.DiscardHandler)
	c := &Client{wire: w, log: log, slots: mem, acks: make(map[uint64]chan struct{}), held: newHeldFDs(log)}
	task := exec.Command("sleep", "600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer task.Wait()
	defer task.Process.Kill()
	pidfd, err := unix.PidfdOpen(task.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.held.add(&packet{kind: kindTask, fds: []int{pidfd}})
	w.close() // as send does after a while
	if err := c.Serve(t.Context(), nil); err == nil || errors.Is(err, ErrGuardian) {
		t.Errorf("served until %v", err)
	}
	if n, err := fb.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the guardian does not learn of it")
	}
	if len(c.held.tasks) > 0 || !runs(task.Process.Pid) {
		t.Error("the task was ended")
	}
}
