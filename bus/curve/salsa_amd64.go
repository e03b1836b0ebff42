//go:build !purego

package curve

import (
	"encoding/binary"

	"golang.org/x/sys/cpu"
)

// sixBlocks is what AVX2 makes at once. x/crypto goes by four, in SSE2, which
// takes twice as long; libsodium, and so libzmq, uses AVX2 too.
const sixBlocks = 6 * 64

// xorSixBlocks encrypts times six blocks and moves the counter in start. Out and
// in are the same or lie apart.
//
//go:noescape
func xorSixBlocks(out, in *byte, times int, start *[4][8]uint32)

// xorSixes encrypts as many times six blocks as AVX2 can, and says how many
// bytes these were. The counter of blocks must stay below 2^32.
func xorSixes(out, in []byte, counter *[16]byte, key *[keySize]byte) int {
	times := len(in) / sixBlocks
	if times == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	_ = out[times*sixBlocks-1]
	k := func(i int) uint32 { return binary.LittleEndian.Uint32(key[4*i:]) }
	n := func(i int) uint32 { return binary.LittleEndian.Uint32(counter[4*i:]) }
	diagonals := [4][4]uint32{
		{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, // "expand 32-byte k"
		{k(3), n(3), k(7), k(2)},
		{n(2), k(6), k(1), n(1)},
		{k(5), k(0), n(0), k(4)},
	}
	var start [4][8]uint32
	for i, row := range diagonals {
		copy(start[i][:4], row[:])
		copy(start[i][4:], row[:])
	}
	start[2][4]++
	xorSixBlocks(&out[0], &in[0], times, &start)
	binary.LittleEndian.PutUint32(counter[8:], n(2)+6*uint32(times))
	return times * sixBlocks
}
