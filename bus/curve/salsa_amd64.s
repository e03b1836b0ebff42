//go:build !purego

#include "textflag.h"

// Salsa20 with its state turned so that each row holds a diagonal: then a step
// works on whole rows, and between rounds the rows only rotate. A register holds
// the same row of two blocks; three groups of four registers make six blocks.

#define STEP(A, B, C, LEFT, RIGHT) \
	VPADDD A, B, Y12       \
	VPSLLD $LEFT, Y12, Y13 \
	VPSRLD $RIGHT, Y12, Y12 \
	VPXOR  Y13, C, C       \
	VPXOR  Y12, C, C

#define STEPS(A0, B0, C0, A1, B1, C1, A2, B2, C2, LEFT, RIGHT) \
	STEP(A0, B0, C0, LEFT, RIGHT) \
	STEP(A1, B1, C1, LEFT, RIGHT) \
	STEP(A2, B2, C2, LEFT, RIGHT)

#define ROTATE(A, B, C, LEFT, RIGHT) \
	VPSHUFD $LEFT, A, A  \
	VPSHUFD $0x4E, B, B  \
	VPSHUFD $RIGHT, C, C

// FINISH adds the start of a group, whose counter is ahead by AHEAD, puts its
// rows in order, and encrypts two blocks at OFFSET.
#define FINISH(R0, R1, R2, R3, AHEAD, OFFSET) \
	VPADDD     0(DX), R0, R0      \
	VPADDD     32(DX), R1, R1     \
	VPADDD     64(DX), R2, R2     \
	VPADDD     AHEAD, R2, R2      \
	VPADDD     96(DX), R3, R3     \
	VPBLENDD   $0xAA, R3, R0, Y12 \
	VPBLENDD   $0xAA, R1, R2, Y13 \
	VPBLENDD   $0xAA, R0, R1, Y14 \
	VPBLENDD   $0xAA, R2, R3, Y15 \
	VPBLENDD   $0xCC, Y13, Y12, R0 \
	VPBLENDD   $0xCC, Y15, Y14, R1 \
	VPBLENDD   $0xCC, Y12, Y13, R2 \
	VPBLENDD   $0xCC, Y14, Y15, R3 \
	VPERM2I128 $0x20, R1, R0, Y12 \
	VPERM2I128 $0x20, R3, R2, Y13 \
	VPERM2I128 $0x31, R1, R0, Y14 \
	VPERM2I128 $0x31, R3, R2, Y15 \
	VPXOR      (OFFSET+0)(SI), Y12, Y12  \
	VPXOR      (OFFSET+32)(SI), Y13, Y13 \
	VPXOR      (OFFSET+64)(SI), Y14, Y14 \
	VPXOR      (OFFSET+96)(SI), Y15, Y15 \
	VMOVDQU    Y12, (OFFSET+0)(DI)  \
	VMOVDQU    Y13, (OFFSET+32)(DI) \
	VMOVDQU    Y14, (OFFSET+64)(DI) \
	VMOVDQU    Y15, (OFFSET+96)(DI)

#define AHEAD(NAME, N) \
	DATA NAME<>+0(SB)/8, $N  \
	DATA NAME<>+8(SB)/8, $0  \
	DATA NAME<>+16(SB)/8, $N \
	DATA NAME<>+24(SB)/8, $0 \
	GLOBL NAME<>(SB), RODATA|NOPTR, $32

AHEAD(zero, 0)
AHEAD(two, 2)
AHEAD(four, 4)
AHEAD(six, 6)

// func xorSixBlocks(out, in *byte, times int, start *[4][8]uint32)
TEXT ·xorSixBlocks(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ in+8(FP), SI
	MOVQ times+16(FP), CX
	MOVQ start+24(FP), DX

more:
	VMOVDQU 0(DX), Y0
	VMOVDQU 32(DX), Y1
	VMOVDQU 64(DX), Y2
	VMOVDQU 96(DX), Y3
	VMOVDQA Y0, Y4
	VMOVDQA Y1, Y5
	VPADDD  two<>(SB), Y2, Y6
	VMOVDQA Y3, Y7
	VMOVDQA Y0, Y8
	VMOVDQA Y1, Y9
	VPADDD  four<>(SB), Y2, Y10
	VMOVDQA Y3, Y11
	MOVQ    $10, AX

rounds:
	STEPS(Y0, Y3, Y1, Y4, Y7, Y5, Y8, Y11, Y9, 7, 25)
	STEPS(Y1, Y0, Y2, Y5, Y4, Y6, Y9, Y8, Y10, 9, 23)
	STEPS(Y2, Y1, Y3, Y6, Y5, Y7, Y10, Y9, Y11, 13, 19)
	STEPS(Y3, Y2, Y0, Y7, Y6, Y4, Y11, Y10, Y8, 18, 14)
	ROTATE(Y1, Y2, Y3, 0x93, 0x39)
	ROTATE(Y5, Y6, Y7, 0x93, 0x39)
	ROTATE(Y9, Y10, Y11, 0x93, 0x39)
	STEPS(Y0, Y1, Y3, Y4, Y5, Y7, Y8, Y9, Y11, 7, 25)
	STEPS(Y3, Y0, Y2, Y7, Y4, Y6, Y11, Y8, Y10, 9, 23)
	STEPS(Y2, Y3, Y1, Y6, Y7, Y5, Y10, Y11, Y9, 13, 19)
	STEPS(Y1, Y2, Y0, Y5, Y6, Y4, Y9, Y10, Y8, 18, 14)
	ROTATE(Y1, Y2, Y3, 0x39, 0x93)
	ROTATE(Y5, Y6, Y7, 0x39, 0x93)
	ROTATE(Y9, Y10, Y11, 0x39, 0x93)
	DECQ AX
	JNZ  rounds

	FINISH(Y0, Y1, Y2, Y3, zero<>(SB), 0)
	FINISH(Y4, Y5, Y6, Y7, two<>(SB), 128)
	FINISH(Y8, Y9, Y10, Y11, four<>(SB), 256)

	VMOVDQU 64(DX), Y2
	VPADDD  six<>(SB), Y2, Y2
	VMOVDQU Y2, 64(DX)
	ADDQ    $384, SI
	ADDQ    $384, DI
	DECQ    CX
	JNZ     more
	VZEROUPPER
	RET
