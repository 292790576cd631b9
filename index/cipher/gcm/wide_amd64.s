#include "textflag.h"

// A block from its last byte to its first.
DATA reverse<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse<>+8(SB)/8, $0x0001020304050607
GLOBL reverse<>(SB), RODATA|NOPTR, $16

// The polynomial of POLYVAL, without its highest power.
DATA poly<>+0(SB)/8, $0x0000000000000001
DATA poly<>+8(SB)/8, $0xc200000000000000
GLOBL poly<>(SB), RODATA|NOPTR, $16

// The second counter of two is one ahead, and both move on by two.
DATA ahead<>+0(SB)/8, $0
DATA ahead<>+8(SB)/8, $0
DATA ahead<>+16(SB)/8, $1
DATA ahead<>+24(SB)/8, $0
GLOBL ahead<>(SB), RODATA|NOPTR, $32
DATA step<>+0(SB)/8, $2
DATA step<>+8(SB)/8, $0
GLOBL step<>(SB), RODATA|NOPTR, $16

// EXPAND makes the next key of a round of the one in x and what AESKEYGENASSIST has left in X2.
#define EXPAND(x, off) \
	VPSLLDQ $4, x, X3; \
	VPXOR   X3, x, x; \
	VPSLLDQ $4, X3, X3; \
	VPXOR   X3, x, x; \
	VPSLLDQ $4, X3, X3; \
	VPXOR   X3, x, x; \
	VPXOR   X2, x, x; \
	VMOVDQU x, off(DI)

#define EVEN(rcon, off) \
	VAESKEYGENASSIST $rcon, X1, X2; \
	VPSHUFD          $0xff, X2, X2; \
	EXPAND(X0, off)

#define ODD(off) \
	VAESKEYGENASSIST $0, X0, X2; \
	VPSHUFD          $0xaa, X2, X2; \
	EXPAND(X1, off)

// func expand(rounds *[15 * block]byte, key *[KeySize]byte)
TEXT ·expand(SB), NOSPLIT, $0-16
	MOVQ    rounds+0(FP), DI
	MOVQ    key+8(FP), SI
	VMOVDQU (SI), X0
	VMOVDQU 16(SI), X1
	VMOVDQU X0, (DI)
	VMOVDQU X1, 16(DI)
	EVEN(0x01, 32)
	ODD(48)
	EVEN(0x02, 64)
	ODD(80)
	EVEN(0x04, 96)
	ODD(112)
	EVEN(0x08, 128)
	ODD(144)
	EVEN(0x10, 160)
	ODD(176)
	EVEN(0x20, 192)
	ODD(208)
	EVEN(0x40, 224)
	VPXOR X0, X0, X0
	VPXOR X1, X1, X1
	VPXOR X2, X2, X2
	VPXOR X3, X3, X3
	RET

// COUNT gives the next two counter blocks.
#define COUNT(y) \
	VPSHUFB Y10, Y8, y; \
	VPADDD  Y9, Y8, Y8; \
	VPXOR   Y12, y, y

#define ROUND(off) \
	VBROADCASTI128 off(AX), Y11; \
	VAESENC        Y11, Y0, Y0; \
	VAESENC        Y11, Y1, Y1; \
	VAESENC        Y11, Y2, Y2; \
	VAESENC        Y11, Y3, Y3; \
	VAESENC        Y11, Y4, Y4; \
	VAESENC        Y11, Y5, Y5; \
	VAESENC        Y11, Y6, Y6; \
	VAESENC        Y11, Y7, Y7

// LAST ends the encryption of two blocks, and adds them to the text.
#define LAST(y, off) \
	VAESENCLAST Y11, y, y; \
	VPXOR       off(SI), y, y; \
	VMOVDQU     y, off(DI)

// func ctr(dst, src *byte, n int, rounds *[15 * block]byte, counter *[block]byte)
TEXT ·ctr(SB), NOSPLIT, $0-40
	MOVQ           dst+0(FP), DI
	MOVQ           src+8(FP), SI
	MOVQ           n+16(FP), CX
	MOVQ           rounds+24(FP), AX
	MOVQ           counter+32(FP), BX
	VBROADCASTI128 reverse<>(SB), Y10
	VBROADCASTI128 step<>(SB), Y9
	VBROADCASTI128 (BX), Y8
	VPSHUFB        Y10, Y8, Y8
	VPADDD         ahead<>(SB), Y8, Y8
	VBROADCASTI128 (AX), Y12

next:
	COUNT(Y0)
	COUNT(Y1)
	COUNT(Y2)
	COUNT(Y3)
	COUNT(Y4)
	COUNT(Y5)
	COUNT(Y6)
	COUNT(Y7)
	ROUND(16)
	ROUND(32)
	ROUND(48)
	ROUND(64)
	ROUND(80)
	ROUND(96)
	ROUND(112)
	ROUND(128)
	ROUND(144)
	ROUND(160)
	ROUND(176)
	ROUND(192)
	ROUND(208)
	VBROADCASTI128 224(AX), Y11
	LAST(Y0, 0)
	LAST(Y1, 32)
	LAST(Y2, 64)
	LAST(Y3, 96)
	LAST(Y4, 128)
	LAST(Y5, 160)
	LAST(Y6, 192)
	LAST(Y7, 224)
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JNZ  next
	VPXOR Y11, Y11, Y11
	VPXOR Y12, Y12, Y12
	VZEROUPPER
	RET

// LOAD takes two blocks, ADD multiplies them: the low halves to Y4, the high ones to Y6, and the sums of both, of which
// these have to be taken, to Y5.
#define LOAD(off) \
	VMOVDQU off(SI), Y0; \
	VPSHUFB Y8, Y0, Y0

#define ADD(off, sums) \
	VMOVDQU    off(BX), Y1; \
	VPCLMULQDQ $0x00, Y1, Y0, Y2; \
	VPXOR      Y2, Y4, Y4; \
	VPCLMULQDQ $0x11, Y1, Y0, Y3; \
	VPXOR      Y3, Y6, Y6; \
	VPSHUFD    $0x4e, Y0, Y2; \
	VPXOR      Y0, Y2, Y2; \
	VPCLMULQDQ $0x00, sums(BX), Y2, Y2; \
	VPXOR      Y2, Y5, Y5

// REDUCE folds 64 bits of the low half.
#define REDUCE \
	VPCLMULQDQ $0x10, X9, X4, X0; \
	VPSHUFD    $0x4e, X4, X4; \
	VPXOR      X0, X4, X4

// func ghash(state *[block]byte, powers *[2 * group]byte, p *byte, n int)
TEXT ·ghash(SB), NOSPLIT, $0-32
	MOVQ           state+0(FP), DI
	MOVQ           powers+8(FP), BX
	MOVQ           p+16(FP), SI
	MOVQ           n+24(FP), CX
	VBROADCASTI128 reverse<>(SB), Y8
	VMOVDQU        poly<>(SB), X9
	VMOVDQU        (DI), X7

more:
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	LOAD(32)
	ADD(32, 288)
	LOAD(64)
	ADD(64, 320)
	LOAD(96)
	ADD(96, 352)
	LOAD(128)
	ADD(128, 384)
	LOAD(160)
	ADD(160, 416)
	LOAD(192)
	ADD(192, 448)
	LOAD(224)
	ADD(224, 480)
	LOAD(0)
	VPXOR Y7, Y0, Y0
	ADD(0, 256)
	VPXOR        Y4, Y5, Y5
	VPXOR        Y6, Y5, Y5
	VEXTRACTI128 $1, Y4, X0
	VPXOR        X0, X4, X4
	VEXTRACTI128 $1, Y5, X0
	VPXOR        X0, X5, X5
	VEXTRACTI128 $1, Y6, X0
	VPXOR        X0, X6, X6
	VPSLLDQ      $8, X5, X0
	VPXOR        X0, X4, X4
	VPSRLDQ      $8, X5, X1
	VPXOR        X1, X6, X6
	REDUCE
	REDUCE
	VPXOR        X6, X4, X7
	ADDQ         $256, SI
	SUBQ         $256, CX
	JNZ          more
	VMOVDQU      X7, (DI)
	VPXOR        Y1, Y1, Y1
	VZEROUPPER
	RET
