#include "textflag.h"

// x^(2048+32) and x^(2048-32) modulo the polynomial 0x11edc6f41, bits reversed and moved up by one: the first and the
// second half of 128 bits are multiplied by these, to be carried 2048 bits further.
DATA carry<>+0(SB)/8, $0x00000000dcb17aa4
DATA carry<>+8(SB)/8, $0x00000000b9e02b86
GLOBL carry<>(SB), RODATA|NOPTR, $16

// func fold(rest *[block]byte, p *byte, n int, state uint32)
TEXT ·fold(SB), NOSPLIT, $0-28
	MOVQ            rest+0(FP), DI
	MOVQ            p+8(FP), SI
	MOVQ            n+16(FP), CX
	MOVL            state+24(FP), AX
	VBROADCASTI32X4 carry<>(SB), Z5
	VMOVDQU64       (SI), Z0
	VMOVDQU64       64(SI), Z1
	VMOVDQU64       128(SI), Z2
	VMOVDQU64       192(SI), Z3
	VMOVD           AX, X4
	VPXORQ          Z4, Z0, Z0
	ADDQ            $256, SI
	SUBQ            $256, CX
	JZ              done

next:
	VPCLMULQDQ $0x00, Z5, Z0, Z6
	VPCLMULQDQ $0x11, Z5, Z0, Z0
	VPTERNLOGQ $0x96, (SI), Z6, Z0
	VPCLMULQDQ $0x00, Z5, Z1, Z7
	VPCLMULQDQ $0x11, Z5, Z1, Z1
	VPTERNLOGQ $0x96, 64(SI), Z7, Z1
	VPCLMULQDQ $0x00, Z5, Z2, Z8
	VPCLMULQDQ $0x11, Z5, Z2, Z2
	VPTERNLOGQ $0x96, 128(SI), Z8, Z2
	VPCLMULQDQ $0x00, Z5, Z3, Z9
	VPCLMULQDQ $0x11, Z5, Z3, Z3
	VPTERNLOGQ $0x96, 192(SI), Z9, Z3
	ADDQ       $256, SI
	SUBQ       $256, CX
	JNZ        next

done:
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVDQU64 Z2, 128(DI)
	VMOVDQU64 Z3, 192(DI)
	VZEROUPPER
	RET
