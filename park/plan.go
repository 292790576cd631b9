//go:build linux && amd64

package park

import (
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/park/inject"
)

// Flags of io_uring_setup, linux/io_uring.h.
const (
	setupCQSize    = 1 << 3
	setupSQE128    = 1 << 10
	setupCQE32     = 1 << 11
	setupNoSQArray = 1 << 16
)

const (
	paramsSize  = 120
	offsetsAt   = 40 // of SQ in params
	offsetsSize = 80
)

// saved is a part of a ring's memory, and where it is kept.
type saved struct {
	inject.Mapping
	at uint64
}

// remaking is what the plan for a ring needs.
type remaking struct {
	*ring
	params   params
	template uint64 // where params are, as they are asked for
	answer   uint64 // where the kernel writes them
	pause    uint64 // a struct timespec
	memory   []saved
}

// Errors after which a plan tries again: they pass.
var passing = []unix.Errno{unix.ENOMEM, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.EINTR}

// plan makes a ring anew. It asks for one with the same parameters, which must have the same layout, gives it the old
// one's descriptor and addresses, lets it serve as many requests that do nothing as the old one had served, so that
// the kernel's own indices are where the program's are, and brings the old memory back.
func (r *remaking) plan(c *inject.Code, failed uint64) {
	var fails []int
	fail := func(condition byte) { fails = append(fails, c.If(condition)) }

	retry := len(*c)
	r.copyMemory(c, r.template, r.answer, paramsSize)
	c.Call(unix.SYS_IO_URING_SETUP, uint64(r.sqMask)+1, r.answer)
	c.Bytes(0x48, 0x85, 0xc0) // TEST rax, rax
	refused := c.If(inject.Negative)
	c.Bytes(0x49, 0x89, 0xc4) // MOV r12, rax
	c.Compare(int32(r.fd))
	same := c.If(inject.Equal)
	c.Load(inject.RSI, uint64(r.fd))
	c.Load(inject.RDX, unix.O_CLOEXEC)
	c.Bytes(0x4c, 0x89, 0xe7) // MOV rdi, r12
	c.Load(inject.RAX, unix.SYS_DUP3)
	c.Syscall()
	c.Bytes(0x48, 0x85, 0xc0)
	fail(inject.Negative)
	c.Bytes(0x4c, 0x89, 0xe7)
	c.Load(inject.RAX, unix.SYS_CLOSE)
	c.Syscall()
	c.Here(same)
	flag := uint64(0)
	if r.closeOnExec {
		flag = unix.FD_CLOEXEC
	}
	c.Call(unix.SYS_FCNTL, uint64(r.fd), unix.F_SETFD, flag)

	// The same layout.
	c.Load(inject.RSI, r.template+offsetsAt+offsetsSize) // the old one's, behind the template
	c.Load(inject.RDI, r.answer+offsetsAt)
	c.Load(inject.RCX, offsetsSize)
	c.Load(inject.RAX, negative(unix.EPROTO))
	c.Bytes(0xfc, 0xf3, 0xa6) // CLD; REPE CMPSB
	fail(inject.NotEqual)

	for _, m := range r.mappings {
		c.Call(unix.SYS_MUNMAP, m.Start, m.End-m.Start)
		c.Call(unix.SYS_MMAP, 0, m.End-m.Start, protection(m.Perms), unix.MAP_SHARED, uint64(r.fd), m.Offset)
		c.Load(inject.RCX, m.Start)
		c.Bytes(0x48, 0x39, 0xc8) // CMP rax, rcx
		fail(inject.NotEqual)
	}
	base, _ := r.base()
	if r.sqCached > 0 {
		// A fresh ring is all zeros: each request is a NOP, and all are the first.
		c.Load(inject.R13, uint64(r.sqCached))
		again := len(*c)
		c.Load(inject.RBX, uint64(r.sqMask)+1)
		c.Bytes(0x49, 0x39, 0xdd)       // CMP r13, rbx
		c.Bytes(0x49, 0x0f, 0x42, 0xdd) // CMOVB rbx, r13
		c.Load(inject.RAX, base.Start+uint64(r.params.SQ.Tail))
		c.Bytes(0x01, 0x18) // ADD [rax], ebx
		c.Load(inject.RDI, uint64(r.fd))
		c.Bytes(0x48, 0x89, 0xde) // MOV rsi, rbx
		for _, zero := range []inject.Register{inject.RDX, inject.R10, inject.R8, inject.R9} {
			c.Load(zero, 0)
		}
		c.Load(inject.RAX, unix.SYS_IO_URING_ENTER)
		c.Syscall()
		c.Bytes(0x48, 0x39, 0xd8) // CMP rax, rbx
		fail(inject.NotEqual)
		c.Load(inject.RAX, base.Start+uint64(r.params.CQ.Tail))
		c.Bytes(0x8b, 0x08) // MOV ecx, [rax]
		c.Load(inject.RAX, base.Start+uint64(r.params.CQ.Head))
		c.Bytes(0x89, 0x08)       // MOV [rax], ecx
		c.Bytes(0x49, 0x29, 0xdd) // SUB r13, rbx
		c.Back(inject.NotEqual, again)
	}
	for _, m := range r.memory {
		r.copyMemory(c, m.at, m.Start, m.End-m.Start)
	}
	c.Bytes(0x31, 0xc0) // XOR eax, eax
	done := c.If(inject.Equal)

	c.Here(refused)
	var wait []int
	for _, e := range passing {
		c.Compare(-int32(e))
		wait = append(wait, c.If(inject.Equal))
	}
	for _, f := range fails {
		c.Here(f)
	}
	c.Jump(failed)
	for _, w := range wait {
		c.Here(w)
	}
	c.Call(unix.SYS_NANOSLEEP, r.pause, 0)
	c.Bytes(0x31, 0xc0)
	c.Back(inject.Equal, retry)
	c.Here(done)
}

// fill leaves the process no room in its address space, and notes in list what it has taken. A ring cannot be mapped
// at an address of one's choice (io_uring_get_unmapped_area refuses all), but the kernel finds the only place that
// there is. Pieces go from the largest to a page; what the rings had is reserved meanwhile.
func fill(c *inject.Code, list, size uint64) {
	const largest = 1 << 46
	c.Load(inject.R14, list)
	c.Load(inject.RBX, largest)
	again := len(*c)
	c.Load(inject.RDI, 0)
	c.Bytes(0x48, 0x89, 0xde) // MOV rsi, rbx
	c.Load(inject.RDX, unix.PROT_NONE)
	c.Load(inject.R10, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	c.Load(inject.R8, ^uint64(0))
	c.Load(inject.R9, 0)
	c.Load(inject.RAX, unix.SYS_MMAP)
	c.Syscall()
	c.Bytes(0x48, 0x85, 0xc0) // TEST rax, rax
	none := c.If(inject.Negative)
	c.Bytes(0x49, 0x89, 0x06)       // MOV [r14], rax
	c.Bytes(0x49, 0x89, 0x5e, 0x08) // MOV [r14+8], rbx
	c.Bytes(0x49, 0x83, 0xc6, 0x10) // ADD r14, 16
	c.Load(inject.RAX, list+size)
	c.Bytes(0x49, 0x39, 0xc6) // CMP r14, rax
	c.Back(inject.NotEqual, again)
	full := c.If(inject.Equal)
	c.Here(none)
	c.Bytes(0x48, 0xd1, 0xeb) // SHR rbx, 1
	c.Bytes(0x48, 0x81, 0xfb) // CMP rbx, page
	c.Bytes(0x00, 0x10, 0x00, 0x00)
	c.Back(aboveOrEqual, again)
	c.Here(full)
}

const aboveOrEqual = 0x83

// empty gives back what fill has taken.
func empty(c *inject.Code, list uint64) {
	again := len(*c)
	c.Load(inject.RAX, list)
	c.Bytes(0x49, 0x39, 0xc6) // CMP r14, rax
	done := c.If(inject.Equal)
	c.Bytes(0x49, 0x83, 0xee, 0x10) // SUB r14, 16
	c.Bytes(0x49, 0x8b, 0x3e)       // MOV rdi, [r14]
	c.Bytes(0x49, 0x8b, 0x76, 0x08) // MOV rsi, [r14+8]
	c.Load(inject.RAX, unix.SYS_MUNMAP)
	c.Syscall()
	c.Bytes(0x31, 0xc0)
	c.Back(inject.Equal, again)
	c.Here(done)
}

func (r *remaking) copyMemory(c *inject.Code, from, to, size uint64) {
	c.Load(inject.RSI, from)
	c.Load(inject.RDI, to)
	c.Load(inject.RCX, size)
	c.Bytes(0xfc, 0xf3, 0xa4) // CLD; REP MOVSB
}

func negative(e unix.Errno) uint64 { return uint64(-int64(e)) }

// protection is that of a mapping whose permissions /proc shows.
func protection(perms string) uint64 {
	p := uint64(0)
	for i, bit := range []uint64{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
		if perms[i] != '-' {
			p |= bit
		}
	}
	return p
}
