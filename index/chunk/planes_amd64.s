#include "textflag.h"

DATA nibbleMask<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA nibbleMask<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA nibbleMask<>+16(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA nibbleMask<>+24(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL nibbleMask<>(SB), RODATA|NOPTR, $32

DATA evenBytes<>+0(SB)/8, $0x00ff00ff00ff00ff
DATA evenBytes<>+8(SB)/8, $0x00ff00ff00ff00ff
DATA evenBytes<>+16(SB)/8, $0x00ff00ff00ff00ff
DATA evenBytes<>+24(SB)/8, $0x00ff00ff00ff00ff
GLOBL evenBytes<>(SB), RODATA|NOPTR, $32

// 1, 16, 1, 16, ...: two nibbles to a byte
DATA joinNibbles<>+0(SB)/8, $0x1001100110011001
DATA joinNibbles<>+8(SB)/8, $0x1001100110011001
DATA joinNibbles<>+16(SB)/8, $0x1001100110011001
DATA joinNibbles<>+24(SB)/8, $0x1001100110011001
GLOBL joinNibbles<>(SB), RODATA|NOPTR, $32

// func joinBlocks(dst, nibbles, low *byte, blocks int, values *[16]byte, masks *uint32)
TEXT ·joinBlocks(SB), NOSPLIT, $0-48
	MOVQ    dst+0(FP), DI
	MOVQ    nibbles+8(FP), SI
	MOVQ    low+16(FP), DX
	MOVQ    blocks+24(FP), CX
	MOVQ    values+32(FP), AX
	MOVQ    masks+40(FP), R8
	VMOVDQU (AX), X15
	VMOVDQU nibbleMask<>(SB), X14

join:
	VMOVDQU    (SI), X0
	VPSRLW     $4, X0, X1
	VPAND      X14, X0, X0
	VPAND      X14, X1, X1
	VPUNPCKLBW X1, X0, X2           // codes of numbers 0 to 15
	VPUNPCKHBW X1, X0, X3           // 16 to 31
	VPCMPEQB   X14, X2, X4
	VPCMPEQB   X14, X3, X5
	VPMOVMSKB  X4, R9
	VPMOVMSKB  X5, R10
	SHLL       $16, R10
	ORL        R10, R9
	MOVL       R9, (R8)
	VPSHUFB    X2, X15, X2
	VPSHUFB    X3, X15, X3
	VMOVDQU    (DX), X6
	VMOVDQU    16(DX), X7
	VPUNPCKLBW X2, X6, X8
	VPUNPCKHBW X2, X6, X9
	VPUNPCKLBW X3, X7, X10
	VPUNPCKHBW X3, X7, X11
	VMOVDQU    X8, (DI)
	VMOVDQU    X9, 16(DI)
	VMOVDQU    X10, 32(DI)
	VMOVDQU    X11, 48(DI)
	ADDQ       $16, SI
	ADDQ       $32, DX
	ADDQ       $64, DI
	ADDQ       $4, R8
	DECQ       CX
	JNZ        join
	VZEROUPPER
	RET

// MATCH turns the codes in Y4 of the numbers whose high byte (Y3) is value k into k.
#define MATCH(k) \
	VPCMPEQB k*32(AX), Y3, Y5; \
	VPAND    480+k*32(AX), Y5, Y5; \
	VPXOR    Y5, Y4, Y4

// func splitBlocks(content *byte, blocks int, t *planeTable, nibbles, low *byte, masks *uint32)
TEXT ·splitBlocks(SB), NOSPLIT, $0-48
	MOVQ    content+0(FP), SI
	MOVQ    blocks+8(FP), CX
	MOVQ    t+16(FP), AX
	MOVQ    nibbles+24(FP), DI
	MOVQ    low+32(FP), DX
	MOVQ    masks+40(FP), R8
	VMOVDQU evenBytes<>(SB), Y15
	VMOVDQU nibbleMask<>(SB), Y14
	VMOVDQU joinNibbles<>(SB), Y13

split:
	VMOVDQU    (SI), Y0
	VMOVDQU    32(SI), Y1
	VPAND      Y15, Y0, Y2
	VPAND      Y15, Y1, Y3
	VPACKUSWB  Y3, Y2, Y2
	VPERMQ     $0xd8, Y2, Y2
	VMOVDQU    Y2, (DX)
	VPSRLW     $8, Y0, Y0
	VPSRLW     $8, Y1, Y1
	VPACKUSWB  Y1, Y0, Y3
	VPERMQ     $0xd8, Y3, Y3        // high bytes in order
	VMOVDQU    Y14, Y4
	MATCH(0)
	MATCH(1)
	MATCH(2)
	MATCH(3)
	MATCH(4)
	MATCH(5)
	MATCH(6)
	MATCH(7)
	MATCH(8)
	MATCH(9)
	MATCH(10)
	MATCH(11)
	MATCH(12)
	MATCH(13)
	MATCH(14)
	VPCMPEQB   Y14, Y4, Y5
	VPMOVMSKB  Y5, R9
	MOVL       R9, (R8)
	VPMADDUBSW Y13, Y4, Y4
	VPACKUSWB  Y4, Y4, Y4
	VPERMQ     $0xd8, Y4, Y4
	VMOVDQU    X4, (DI)
	ADDQ       $64, SI
	ADDQ       $32, DX
	ADDQ       $16, DI
	ADDQ       $4, R8
	DECQ       CX
	JNZ        split
	VZEROUPPER
	RET
