package inject

import "encoding/binary"

// Register is one of x86-64's, by its number in instructions.
type Register byte

// The registers that are used here.
const (
	RAX Register = 0
	RCX Register = 1
	RDX Register = 2
	RBX Register = 3
	RSP Register = 4
	RBP Register = 5
	RSI Register = 6
	RDI Register = 7
	R8  Register = 8
	R9  Register = 9
	R10 Register = 10
	R11 Register = 11
	R12 Register = 12
	R13 Register = 13
	R14 Register = 14
	R15 Register = 15
)

// arguments of a system call, in their order.
var arguments = [...]Register{RDI, RSI, RDX, R10, R8, R9}

// Code is a sequence of instructions. Addresses and numbers stand in the instructions: it runs wherever it is.
type Code []byte

// Bytes appends instructions as the processor has them.
func (c *Code) Bytes(b ...byte) { *c = append(*c, b...) }

// Syscall is SYSCALL.
func (c *Code) Syscall() { c.Bytes(0x0f, 0x05) }

// Load is MOV r64, imm64.
func (c *Code) Load(r Register, v uint64) {
	c.Bytes(0x48|byte(r>>3), 0xb8|byte(r&7))
	*c = binary.LittleEndian.AppendUint64(*c, v)
}

// Set is MOV of a number to a register, in the shortest form.
func (c *Code) Set(r Register, v uint64) {
	if v>>32 != 0 {
		c.Load(r, v)
		return
	}
	if r >= R8 {
		c.Bytes(0x41)
	}
	c.Bytes(0xb8 | byte(r&7)) // MOV r32, imm32 clears the upper half
	*c = binary.LittleEndian.AppendUint32(*c, uint32(v))
}

// Move is MOV to, from.
func (c *Code) Move(to, from Register) {
	c.Bytes(0x48|byte(from>>3)<<2|byte(to>>3), 0x89, 0xc0|byte(from&7)<<3|byte(to&7))
}

// Add adds another register, without a change of flags: LEA to, [to+other]. to is not RBP or R13, other is not RSP.
func (c *Code) Add(to, other Register) {
	c.Bytes(0x48|byte(to>>3)<<2|byte(other>>3)<<1|byte(to>>3), 0x8d, 0x04|byte(to&7)<<3, byte(other&7)<<3|byte(to&7))
}

// IfFailed is a jump forward, to where Here is called, where a register holds what a system call gives that has
// failed, and no address or number. RCX is lost, no flag is changed.
func (c *Code) IfFailed(r Register) int {
	c.Move(RCX, r)
	c.Bytes(0x48, 0x0f, 0xc9) // BSWAP rcx
	c.Bytes(0x0f, 0xb7, 0xc9) // MOVZX ecx, cx: the highest 16 bits
	c.Bytes(0xe3, 5)          // JRCXZ behind the next one
	c.Bytes(0xe9, 0, 0, 0, 0) // JMP
	return len(*c)
}

// IfZero is a jump forward, to where Here is called, where a register holds 0. RCX is lost, no flag is changed.
func (c *Code) IfZero(r Register) int {
	c.Move(RCX, r)
	c.Bytes(0xe3, 2)          // JRCXZ behind the next one
	c.Bytes(0xeb, 5)          // JMP behind the next one
	c.Bytes(0xe9, 0, 0, 0, 0) // JMP
	return len(*c)
}

// Jump is JMP [rip+0] with the address behind it: it needs no register.
func (c *Code) Jump(to uint64) {
	c.Bytes(0xff, 0x25, 0, 0, 0, 0)
	*c = binary.LittleEndian.AppendUint64(*c, to)
}

// Call makes a system call. Its result is in RAX.
func (c *Code) Call(nr uintptr, args ...uint64) {
	for i, a := range args {
		c.Load(arguments[i], a)
	}
	c.Load(RAX, uint64(nr))
	c.Syscall()
}

// Get is MOV RAX, [address], Put is MOV [address], RAX.
func (c *Code) Get(addr uint64) {
	c.Bytes(0x48, 0xa1)
	*c = binary.LittleEndian.AppendUint64(*c, addr)
}

// Put is MOV [address], RAX.
func (c *Code) Put(addr uint64) {
	c.Bytes(0x48, 0xa3)
	*c = binary.LittleEndian.AppendUint64(*c, addr)
}

// Word writes 32 bits to an address. RAX and RCX are lost.
func (c *Code) Word(addr uint64, v uint32) {
	c.Load(RAX, addr)
	c.Load(RCX, uint64(v))
	c.Bytes(0x89, 0x08) // MOV [rax], ecx
}

// Conditions of jumps.
const (
	Equal    = 0x84
	NotEqual = 0x85
	Negative = 0x88
)

// If is a jump on a condition, forward, to where Here is called with what it gives.
func (c *Code) If(condition byte) int {
	c.Bytes(0x0f, condition, 0, 0, 0, 0)
	return len(*c)
}

// Here ends a jump.
func (c *Code) Here(from int) {
	binary.LittleEndian.PutUint32((*c)[from-4:], uint32(len(*c)-from))
}

// Back is a jump on a condition to a place before, which is what len gave there.
func (c *Code) Back(condition byte, to int) {
	from := c.If(condition)
	binary.LittleEndian.PutUint32((*c)[from-4:], uint32(to-from))
}

// Compare is CMP RAX, imm32, extended by its sign.
func (c *Code) Compare(v int32) {
	c.Bytes(0x48, 0x3d)
	*c = binary.LittleEndian.AppendUint32(*c, uint32(v))
}

// callSize is how much room the instructions of one call take.
const callSize = 2 + 15 + 9*10 + 14
