package inject

import "encoding/binary"

// registers that a system call takes or loses, in the order in which they are loaded.
type register byte

// Numbers of x86-64's registers in its instructions.
const (
	rax register = 0
	rcx register = 1
	rdx register = 2
	rsi register = 6
	rdi register = 7
	r8  register = 8
	r9  register = 9
	r10 register = 10
	r11 register = 11
)

// code is a sequence of instructions of x86-64.
type code []byte

func (c *code) syscall() { *c = append(*c, 0x0f, 0x05) }

// load is MOV r64, imm64.
func (c *code) load(r register, v uint64) {
	*c = append(*c, 0x48|byte(r>>3), 0xb8|byte(r&7))
	*c = binary.LittleEndian.AppendUint64(*c, v)
}

// jump is JMP [rip+0] with the address behind it: it needs no register.
func (c *code) jump(to uint64) {
	*c = append(*c, 0xff, 0x25, 0, 0, 0, 0)
	*c = binary.LittleEndian.AppendUint64(*c, to)
}

// codeSize is how much room the instructions of a call take.
const codeSize = 2 + 9*10 + 14
