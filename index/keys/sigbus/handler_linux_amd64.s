#include "textflag.h"

// System calls and constants: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/mman-common.h.
#define SYS_mmap 9
#define SYS_unlink 87
#define BUS_ADRERR 2
#define PROT_READ_WRITE 3
#define MAP_PRIVATE_ANONYMOUS_FIXED 0x32

// The kernel calls it with the signal in DI, siginfo in SI, the context in DX and the restorer's address on the stack.
// Every register of the program is in the context, so all may be used here. Go's runtime is not entered: the goroutine
// that faulted does not notice.
TEXT ·onBus(SB), NOSPLIT|NOFRAME, $0
	CMPL	8(SI), $BUS_ADRERR
	JNE	chain
	MOVQ	DI, BX
	MOVQ	SI, R12
	MOVQ	DX, R13
	LEAQ	·markers(SB), R14
	MOVQ	$256, R9	// maxMarkers
unlink:
	MOVQ	0(R14), DI
	TESTQ	DI, DI
	JZ	skip
	MOVQ	$SYS_unlink, AX
	SYSCALL
skip:
	ADDQ	$8, R14
	DECQ	R9
	JNZ	unlink
	LEAQ	·faults(SB), AX
	LOCK
	INCQ	0(AX)
	MOVQ	16(R12), DI
	ANDQ	$~4095, DI
	MOVQ	DI, R14
	MOVQ	$4096, SI
	MOVQ	$PROT_READ_WRITE, DX
	MOVQ	$MAP_PRIVATE_ANONYMOUS_FIXED, R10
	MOVQ	$-1, R8
	XORQ	R9, R9
	MOVQ	$SYS_mmap, AX
	SYSCALL
	CMPQ	AX, R14
	JNE	failed
	RET
failed:
	MOVQ	BX, DI
	MOVQ	R12, SI
	MOVQ	R13, DX
chain:
	MOVQ	·next(SB), AX
	JMP	AX

TEXT ·onBusPC(SB), NOSPLIT, $0-8
	LEAQ	·onBus(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
