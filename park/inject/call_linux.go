//go:build amd64

package inject

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call lets the process's first thread make a system call, and gives its result. An errno is the error, as a
// unix.Errno.
func (t *Task) Call(nr uintptr, args ...uint64) (uint64, error) { return t.CallBy(0, nr, args...) }

// Threads is how many threads stand still.
func (t *Task) Threads() int { return len(t.threads) }

// CallBy lets thread i make a system call.
func (t *Task) CallBy(i int, nr uintptr, args ...uint64) (uint64, error) {
	return t.make(t.threads[i], false, nr, args)
}

// CallAndClose lets the first thread make a system call that opens a descriptor, and close it again. A kill in
// between leaves it closed as well.
func (t *Task) CallAndClose(nr uintptr, args ...uint64) error {
	_, err := t.make(t.threads[0], true, nr, args)
	return err
}

func (t *Task) make(th *thread, closes bool, nr uintptr, args []uint64) (uint64, error) {
	for {
		result, err := t.try(th, closes, nr, args)
		if errors.Is(err, errSignal) {
			continue // the call was not made
		}
		if err != nil {
			return 0, err
		}
		if r := int64(result); r < 0 && r > -pageSize {
			return 0, unix.Errno(-r)
		}
		return result, nil
	}
}

// errSignal tells that a signal was delivered instead of the call's being made.
var errSignal = errors.New("a signal came")

func (t *Task) try(th *thread, closes bool, nr uintptr, args []uint64) (uint64, error) {
	if err := t.prepare(th, closes); err != nil {
		return 0, err
	}
	r := th.regs
	r.Rip, r.Rax, r.Orig_rax = t.at, uint64(nr), noCall
	for i, into := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		if i < len(args) {
			*into = args[i]
		}
	}
	th.away = true
	if err := unix.PtraceSetRegs(th.tid, &r); err != nil {
		return 0, gone(t.PID, err)
	}
	t.o.step("registers set")
	for _, where := range []string{"call begun", "call made"} {
		if err := t.toCall(th); err != nil {
			return 0, err
		}
		t.o.step(where)
	}
	var after unix.PtraceRegs
	if err := unix.PtraceGetRegs(th.tid, &after); err != nil {
		return 0, gone(t.PID, err)
	}
	if closes {
		for _, where := range []string{"close begun", "closed"} {
			err := t.toCall(th)
			if errors.Is(err, errSignal) { // it goes its way first
				_, err = t.make(th, false, unix.SYS_CLOSE, []uint64{after.Rax})
				return after.Rax, err
			}
			if err != nil {
				return 0, err
			}
			t.o.step(where)
		}
	}
	if err := unix.PtraceSetRegs(th.tid, &th.regs); err != nil {
		return 0, gone(t.PID, err)
	}
	th.away = false
	t.o.step("registers set back")
	switch int64(after.Rax) {
	case restartSys, restartNoIntr, restartNoHand, restartBlock:
		return 0, unix.EINTR
	}
	return after.Rax, nil
}

// toCall lets a thread run to the beginning or the end of its call. A signal that comes before is delivered to where
// the thread was: the call is off then.
func (t *Task) toCall(th *thread) error {
	for {
		if err := unix.PtraceSyscall(th.tid, 0); err != nil {
			return gone(t.PID, err)
		}
		s, err := t.wait(th.tid)
		if err != nil {
			return err
		}
		sig := s.StopSignal()
		switch {
		case sig == trapSystem:
			return nil
		case int(s)>>16 == unix.PTRACE_EVENT_STOP:
			continue // it was told to stop, and stands still already
		}
		if err := unix.PtraceSetRegs(th.tid, &th.raw); err != nil {
			return gone(t.PID, err)
		}
		t.o.step("registers set back for a signal")
		th.away = false
		if err := unix.PtraceInterrupt(th.tid); err != nil {
			return gone(t.PID, err)
		}
		if err := unix.PtraceCont(th.tid, int(sig)); err != nil {
			return gone(t.PID, err)
		}
		if err := t.standstill(th); err != nil {
			return err
		}
		return errSignal
	}
}

// prepare writes the instructions of a call that bring a thread back to where it is.
func (t *Task) prepare(th *thread, closes bool) error {
	var c Code
	r := &th.regs
	c.Syscall()
	if closes {
		c.Bytes(0x48, 0x89, 0xc7) // MOV rdi, rax
		c.Load(RAX, unix.SYS_CLOSE)
		c.Syscall()
	}
	for _, v := range []struct {
		into  Register
		value uint64
	}{
		{RAX, r.Rax}, {RCX, r.Rcx}, {RDX, r.Rdx}, {RSI, r.Rsi}, {RDI, r.Rdi}, {R8, r.R8}, {R9, r.R9}, {R10, r.R10},
		{R11, r.R11},
	} {
		c.Load(v.into, v.value)
	}
	c.Jump(r.Rip)
	if t.at != 0 {
		return t.put(t.at, c)
	}
	var err error
	if t.all, err = Mappings(t.PID); err != nil {
		return gone(t.PID, err)
	}
	places := room(t.all, callSize, t.Read)
	for _, at := range places {
		was := make([]byte, callSize)
		if t.Read(at, was) != nil || t.put(at, c) != nil {
			continue
		}
		t.at, t.was = at, was
		t.o.step("instructions written")
		return nil
	}
	if err := unix.PtraceGetRegs(th.tid, &unix.PtraceRegs{}); err != nil {
		return gone(t.PID, err)
	}
	return refusal(t.PID, "none of its %d mappings has room for %d bytes of code", len(t.all), callSize)
}

// configuration is struct ptrace_rseq_configuration of linux/ptrace.h.
type configuration struct {
	pointer         uint64
	size, signature uint32
	flags, pad      uint32
}

const (
	getConfiguration = 0x420f // PTRACE_GET_RSEQ_CONFIGURATION
	sequenceAt       = 8      // of rseq_cs in struct rseq
)

// leaveSequence moves a thread that is within a restartable sequence to where it goes when it is preempted there: the
// kernel would not know any more that it was.
func (t *Task) leaveSequence(th *thread) error {
	var c configuration
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getConfiguration, uintptr(th.tid), unsafe.Sizeof(c),
		uintptr(unsafe.Pointer(&c)), 0, 0)
	if errno == unix.EIO || errno == unix.EINVAL || errno == 0 && c.pointer == 0 {
		return nil // a kernel without, or a thread that has none
	}
	if errno != 0 {
		return gone(t.PID, errno)
	}
	var where [8]byte
	if err := t.Read(c.pointer+sequenceAt, where[:]); err != nil {
		return err
	}
	at := binary.LittleEndian.Uint64(where[:])
	if at == 0 {
		return nil
	}
	var s [32]byte // struct rseq_cs: version, flags, start, length, abort
	if err := t.Read(at, s[:]); err != nil {
		return err
	}
	start, length := binary.LittleEndian.Uint64(s[8:]), binary.LittleEndian.Uint64(s[16:])
	abort := binary.LittleEndian.Uint64(s[24:])
	if th.regs.Rip-start < length {
		th.regs.Rip = abort
		th.raw = th.regs // nor is a signal's handler to come back into it
	}
	return nil
}
