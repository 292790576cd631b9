//go:build amd64

package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hold is a process all of whose threads wait in code that was put there for them, with all signals blocked, until the
// other end of a pipe is gone. Then one of them carries out the plan, the others wait for it, and each goes on where it
// was. The process that holds the pipe's end may end in any way; nothing else is needed: a dump takes code, plan and
// pipe along, the pipe without its other end, and so the restored process carries the plan out before all else.
type Hold struct {
	// Data is memory of the process for the plan, from Free on; Code is where its instructions lie, of CodeSize
	// bytes.
	Data, DataSize, Code, CodeSize uint64

	t       *Task
	threads uint64
	next    uint64 // free in Code
	pipe    *os.File
}

// Places in the data of a hold.
const (
	holdMagic  = 0  // says what this is
	holdState  = 8  // see below
	holdResult = 16 // of what has failed
	holdLead   = 24 // who is first carries the plan out
	holdWake   = 32 // not 0: it is carried out
	holdAll    = 40 // a set of all signals
	holdByte   = 48 // what nobody sends
	holdPipe   = 56 // two descriptors
	holdPlan   = 64 // the address of the plan
	holdCount  = 72 // of threads
	holdBlocks = 128
	holdBlock  = 32 // of a thread: the signals it had blocked, its flags, its mark, and what the mark is at last
)

// Places in the block of a thread.
const (
	blockMask  = 0
	blockFlags = 8
	blockMark  = 16
	blockLeft  = 24
)

// States of a hold.
const (
	Waiting = 0
	Done    = 2
	Failed  = 3
)

const magic = 0x6b72617072637067 // gpcrpark

// Sizes of code: of a thread, and of what they share.
const (
	entrySize  = 512
	sharedSize = 512
)

// Free is where in the data of a hold the plan's own begins.
func (h *Hold) Free() uint64 {
	return h.Data + (holdBlocks+h.threads*holdBlock+63)&^63
}

// Hold makes all threads wait. room and code are how many bytes of data and code the plan will take.
func (t *Task) Hold(room, code uint64) (_ *Hold, err error) {
	n := uint64(len(t.threads))
	h := &Hold{t: t, threads: n, DataSize: pages(holdBlocks + n*holdBlock + 64 + room),
		CodeSize: pages(sharedSize + n*entrySize + code)}
	if h.Data, err = t.Call(unix.SYS_MMAP, 0, h.DataSize, unix.PROT_READ|unix.PROT_WRITE, anonymous, noFD,
		0); err != nil {
		return nil, refusal(t.PID, "map memory: %v", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if h.Code, err = t.Call(unix.SYS_MMAP, 0, h.CodeSize, unix.PROT_READ|unix.PROT_EXEC, anonymous, noFD,
		0); err != nil {
		return h, refusal(t.PID, "map memory for code: %v", err)
	}
	if err := h.openPipe(); err != nil {
		return h, err
	}
	h.next = h.Code + sharedSize + n*entrySize
	words := map[uint64]uint64{holdMagic: magic, holdAll: ^uint64(0), holdPlan: h.done(), holdCount: n}
	for at, v := range words {
		if err := t.Write(h.Data+at, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			return h, err
		}
	}
	if err := t.put(h.Code, h.shared()); err != nil {
		return h, err
	}
	for i := range t.threads {
		for {
			err := h.enter(i)
			if err == nil {
				break
			}
			if !errors.Is(err, errSignal) {
				return h, err
			}
		}
		t.o.step("thread waits")
	}
	return h, nil
}

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS

var noFD = ^uint64(0)

func pages(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }

// openPipe lets the process have the one end of a pipe, and takes the other.
func (h *Hold) openPipe() error {
	t := h.t
	if _, err := t.Call(unix.SYS_PIPE2, h.Data+holdPipe, unix.O_CLOEXEC); err != nil {
		return refusal(t.PID, "make a pipe: %v", err)
	}
	_, write, err := h.pipes()
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(t.PID, 0)
	if err == nil {
		var fd int
		if fd, err = unix.PidfdGetfd(pidfd, int(write), 0); err == nil {
			h.pipe = os.NewFile(uintptr(fd), "hold")
		}
		unix.Close(pidfd)
	}
	if err != nil {
		return refusal(t.PID, "take the end of a pipe: %v", err)
	}
	_, err = t.Call(unix.SYS_CLOSE, uint64(write))
	return err
}

func (h *Hold) pipes() (read, write uint32, err error) {
	var b [8]byte
	err = h.t.Read(h.Data+holdPipe, b[:])
	return binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[4:]), err
}

// done and failed are where a plan ends: failed with an errno, negative, in RAX.
func (h *Hold) done() uint64 { return h.Code }

// Failed is where a plan jumps that cannot be carried out, an errno, negative, in RAX. The process is killed then: it
// would go on without what it had.
func (h *Hold) Failed() uint64 { return h.Code + sharedSize/2 }

// shared is the code that all threads share: the ends of a plan. R15 holds where the leader goes on.
func (h *Hold) shared() Code {
	var c Code
	c.Get(h.Data + holdPipe) // the lower half: the end that the process has
	c.Bytes(0x89, 0xc7)      // MOV edi, eax
	c.Load(RAX, unix.SYS_CLOSE)
	c.Syscall()
	c.Load(RAX, Done)
	c.Put(h.Data + holdState)
	c.Put(h.Data + holdWake)
	c.Call(unix.SYS_FUTEX, h.Data+holdWake, futexWake, 1<<30)
	c.Bytes(0x41, 0xff, 0xe7) // JMP r15
	c = append(c, make(Code, sharedSize/2-len(c))...)
	c.Put(h.Data + holdResult)
	c.Load(RAX, Failed)
	c.Put(h.Data + holdState)
	c.Call(unix.SYS_GETPID)
	c.Bytes(0x48, 0x89, 0xc7) // MOV rdi, rax
	c.Load(RSI, uint64(unix.SIGKILL))
	c.Load(RAX, unix.SYS_KILL)
	c.Syscall()
	return c
}

// linux/futex.h, with FUTEX_PRIVATE_FLAG.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

// entry is the code of one thread: it waits, and comes back to where it was.
func (h *Hold) entry(i int, at uint64, pipe uint32) (Code, error) {
	r := &h.t.threads[i].regs
	block := h.Data + holdBlocks + uint64(i)*holdBlock
	mask, flags := block+blockMask, block+blockFlags
	for at, v := range map[uint64]uint64{blockFlags: r.Eflags, blockMark: ^r.Rax, blockLeft: r.Rax} {
		if err := h.t.Write(block+at, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			return nil, err
		}
	}
	var c Code
	c.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, h.Data+holdAll, mask, 8)
	wait := len(c)
	c.Call(unix.SYS_READ, uint64(pipe), h.Data+holdByte, 1)
	c.Compare(-int32(unix.EINTR))
	c.Back(Equal, wait)
	c.Bytes(0x31, 0xc0) // XOR eax, eax
	c.Load(RDX, h.Data+holdLead)
	c.Load(RCX, 1)
	c.Bytes(0xf0, 0x0f, 0xb1, 0x0a) // LOCK CMPXCHG [rdx], ecx
	follow := c.If(NotEqual)
	c.Load(R15, 0) // finish, see below
	finishAt := len(c) - 8
	c.Get(h.Data + holdPlan)
	c.Bytes(0xff, 0xe0) // JMP rax
	c.Here(follow)
	again := len(c)
	c.Call(unix.SYS_FUTEX, h.Data+holdWake, futexWait, 0, 0)
	c.Get(h.Data + holdWake)
	c.Compare(0)
	c.Back(Equal, again)
	binary.LittleEndian.PutUint64(c[finishAt:], at+uint64(len(c)))
	// Flags first: nothing that follows changes them, and signals come only when the stack is the thread's own.
	c.Load(RSP, flags)
	c.Bytes(0x9d) // POPFQ
	c.Load(RSP, r.Rsp)
	c.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, mask, 0, 8)
	for _, v := range []struct {
		into  Register
		value uint64
	}{
		{RAX, r.Rax}, {RBX, r.Rbx}, {RCX, r.Rcx}, {RDX, r.Rdx}, {RSI, r.Rsi}, {RDI, r.Rdi}, {RBP, r.Rbp}, {R8, r.R8},
		{R9, r.R9},
		{R10, r.R10}, {R11, r.R11}, {R12, r.R12}, {R13, r.R13}, {R14, r.R14}, {R15, r.R15},
	} {
		c.Load(v.into, v.value)
	}
	// A signal that waited is handled as soon as signals are free, and its handler comes back to here: the mark tells
	// that this is over. It is made with what RAX holds anyway, and changes no flags.
	c.Put(block + blockMark)
	c.Jump(r.Rip)
	if len(c) > entrySize {
		return nil, fmt.Errorf("the code of a thread has %d bytes", len(c))
	}
	return c, nil
}

// enter makes one thread wait.
func (h *Hold) enter(i int) error {
	t, th := h.t, h.t.threads[i]
	pipe, _, err := h.pipes()
	if err != nil {
		return err
	}
	at := h.Code + sharedSize + uint64(i)*entrySize
	c, err := h.entry(i, at, pipe)
	if err != nil {
		return err
	}
	if err := t.put(at, c); err != nil {
		return err
	}
	r := th.regs
	r.Rip, r.Orig_rax = at, noCall
	if err := unix.PtraceSetRegs(th.tid, &r); err != nil {
		return gone(t.PID, err)
	}
	t.o.step("thread sent to wait")
	for entries := 0; ; entries++ {
		if err := t.toCall(th); err != nil {
			if errors.Is(err, errSignal) && entries > 1 {
				err = errors.Join(err, h.unblock(i)) // only SIGSTOP comes now
			}
			return err
		}
		t.o.step("thread on its way")
		var now unix.PtraceRegs
		if err := unix.PtraceGetRegs(th.tid, &now); err != nil {
			return gone(t.PID, err)
		}
		if now.Orig_rax == unix.SYS_READ {
			break // its beginning: signals are blocked
		}
		if entries > 2 {
			return refusal(t.PID, "thread %d does not come to wait", th.tid)
		}
	}
	if err := unix.PtraceInterrupt(th.tid); err != nil {
		return gone(t.PID, err)
	}
	if err := unix.PtraceCont(th.tid, 0); err != nil {
		return gone(t.PID, err)
	}
	return t.standstill(th)
}

// unblock gives a thread the signals back that it had blocked before it came to wait: it goes there once more.
func (h *Hold) unblock(i int) error {
	const setMask = 0x420b // PTRACE_SETSIGMASK
	var mask [8]byte
	if err := h.t.Read(h.Data+holdBlocks+uint64(i)*holdBlock+blockMask, mask[:]); err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, setMask, uintptr(h.t.threads[i].tid), unsafe.Sizeof(mask),
		uintptr(unsafe.Pointer(&mask)), 0, 0)
	if errno != 0 {
		return gone(h.t.PID, errno)
	}
	return nil
}

// Plan makes instructions the plan, in place of what was, at once. They must end by a jump to what End gives, or to
// Failed. Where they lie is given.
func (h *Hold) Plan(c Code) error {
	c.Jump(h.done())
	if h.next+uint64(len(c)) > h.Code+h.CodeSize {
		return fmt.Errorf("a plan of %d bytes has no room", len(c))
	}
	at := h.next
	if err := h.t.put(at, c); err != nil {
		return err
	}
	h.next = (at + uint64(len(c)) + 15) &^ 15
	err := h.t.put(h.Data+holdPlan, binary.LittleEndian.AppendUint64(nil, at))
	h.t.o.step("planned")
	return err
}

// Close lets the threads carry the plan out and go on, as this process's end does.
func (h *Hold) Close() error {
	if h.pipe == nil {
		return nil
	}
	return h.pipe.Close()
}

// Write writes the process's memory.
func (t *Task) Write(addr uint64, b []byte) error {
	for len(b) > 0 {
		n, err := unix.ProcessVMWritev(t.PID, []unix.Iovec{iovec(b)},
			[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
		if err != nil || n == 0 {
			return fmt.Errorf("write memory of process %d at %x: %w", t.PID, addr, errors.Join(err, unix.EFAULT))
		}
		b, addr = b[n:], addr+uint64(n)
	}
	return nil
}
