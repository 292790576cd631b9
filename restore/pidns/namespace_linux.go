package pidns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Namespace is a pid namespace with an init of ours, and the mount namespace that goes with it. New makes it;
// End or Release must be called.
type Namespace struct {
	thread  *thread
	init    int // its pid out here
	pidfd   int // of init
	control *os.File
	proc    *os.File // /proc as it is out here
	place   int      // where numbers are given from
	entered bool     // another process made it
	once    sync.Once
}

// room is how many numbers CRIU and its helpers may take before the restored processes have theirs: a few dozen,
// and more with many cgroups or tasks.
const room = 4096

// endTime is how long the end of a namespace may take: its processes may have gigabytes to give back.
const endTime = 30 * time.Second

// New makes one.
func New() (*Namespace, error) {
	n := &Namespace{thread: newThread(), pidfd: -1}
	err := n.Do(n.begin)
	if err == nil {
		err = n.Place(n.place)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a pid namespace: %w", err), n.End())
	}
	return n, nil
}

// begin runs on the thread: it enters new namespaces and forks init.
func (n *Namespace) begin() error {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return err
	}
	highest, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	n.place = max(highest-room, 1)
	if n.proc, err = os.Open("/proc"); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWPID); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts apart: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(fds[1])
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return os.NewSyscallError("fcntl", err)
	}
	n.control = os.NewFile(uintptr(fds[0]), "init")
	pid, errno := forkInit(newFirst(fds[1]))
	if errno != 0 {
		return os.NewSyscallError("fork", errno)
	}
	n.init = pid
	if n.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	if err := n.hear(); err != nil {
		return fmt.Errorf("mount /proc of the namespace: %w", err)
	}
	return nil
}

// Init is the pid of the namespace's first process, out here.
func (n *Namespace) Init() int { return n.init }

// Number is the namespace's, the inode of its file in /proc; see namespaces(7).
func (n *Namespace) Number() (uint64, error) {
	var st unix.Stat_t
	path := fmt.Sprintf("/proc/%d/ns/pid", n.init)
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// Proc is /proc out here: in the namespace there is another at its place.
func (n *Namespace) Proc() *os.File { return n.proc }

// Do calls f on a thread that is in the mount namespace, and whose children are born in the pid namespace.
func (n *Namespace) Do(f func() error) error { return n.thread.do(f) }

// hear takes init's answer.
func (n *Namespace) hear() error {
	if err := n.control.SetReadDeadline(time.Now().Add(endTime)); err != nil {
		return err
	}
	var b [4]byte
	k, err := n.control.Read(b[:])
	switch {
	case err != nil || k != len(b):
		return errors.New("the namespace has ended")
	case b != [4]byte{}:
		return unix.Errno(binary.NativeEndian.Uint32(b[:]))
	}
	return nil
}

// tell has init do something.
func (n *Namespace) tell(o order, text string) error {
	size := orderHead + copy(o.text[:], text)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&o)), unsafe.Sizeof(o))
	if _, err := n.control.Write(b[:size]); err != nil {
		return errors.New("the namespace has ended")
	}
	return n.hear()
}

// Place has processes that ask for no number get those after last.
func (n *Namespace) Place(last int) error {
	if err := n.tell(order{kind: tellPlace}, strconv.Itoa(last)); err != nil {
		return fmt.Errorf("set the last pid of the namespace: %w", err)
	}
	n.place = last
	return nil
}

// Clear finds room for processes that need no certain number, between those in used, which rise. It reports whether the
// namespace gives new numbers from there already.
func (n *Namespace) Clear(used []int) (last int, here bool) {
	free := func(from int) bool {
		for _, id := range used {
			if id > from && id <= from+room {
				return false
			}
		}
		return true
	}
	if free(n.place) {
		return n.place, true
	}
	const least = 300 // the kernel begins there again, RESERVED_PIDS
	for last = n.place - room; last > least; last -= room {
		if free(last) {
			return last, false
		}
	}
	return n.place, true // the numbers are spread all over
}

// Release lets the namespace live on without this process: root is its first restored process, as numbered in
// it. When that fails the namespace is ended.
func (n *Namespace) Release(root int) error {
	err := n.Do(func() error { return detachStores(n.proc) })
	if err == nil {
		err = n.tell(order{kind: tellRelease, root: int32(root)}, "")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("release the pid namespace: %w", err), n.End())
	}
	n.once.Do(n.drop)
	return nil
}

// End ends everybody in the namespace, and returns when they are gone. After Release it does nothing, and a process
// that has entered only leaves.
func (n *Namespace) End() (err error) {
	n.once.Do(func() {
		if n.pidfd >= 0 && !n.entered {
			unix.PidfdSendSignal(n.pidfd, unix.SIGKILL, nil, 0)
			err = n.await()
		}
		n.drop()
	})
	return err
}

// await waits for init's end. The kernel lets it end after all others.
func (n *Namespace) await() error {
	for late := time.Now().Add(endTime); ; time.Sleep(time.Millisecond) {
		pid, err := unix.Wait4(n.init, nil, unix.WNOHANG, nil)
		switch {
		case pid == n.init || errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("wait4", err)
		case time.Now().After(late):
			return fmt.Errorf("the pid namespace of process %d does not end", n.init)
		}
	}
}

func (n *Namespace) drop() {
	if n.pidfd >= 0 {
		unix.Close(n.pidfd)
	}
	for _, f := range []*os.File{n.control, n.proc} {
		if f != nil {
			f.Close()
		}
	}
	n.thread.close()
}
