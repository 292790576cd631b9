package criuimg

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrUnknown marks images that hold what this package does not know and cannot
// leave to CRIU: they are sound, and of a later CRIU as a rule.
var ErrUnknown = errors.New(
	"not known to this version of gpucr-fs (hint: criu restore from a mount reads all memory by itself)")

// unknownBit names the lowest of some bits, which are of an image's entry at addr.
func unknownBit(name, what string, set uint32, addr uint64) error {
	return fmt.Errorf("%s: %s 1<<%d at %#x: %w", name, what, bits.TrailingZeros32(set), addr, ErrUnknown)
}

// Flags of a run of pages, from CRIU's pagemap.h. Where the bytes of a run with
// another flag lie nobody can tell.
const (
	peParent  = 1 << 0
	peLazy    = 1 << 1
	pePresent = 1 << 2

	knownPE = peParent | peLazy | pePresent
)

// mmap flags that decide whether CRIU restores a VMA lazily, from the kernel's
// mman.h. The others are passed on: CRIU hands them to the kernel.
const (
	mapPrivate   = 0x02
	mapAnonymous = 0x20
	mapGrowsDown = 0x100
	mapLocked    = 0x2000
	mapHugeTLB   = 0x40000
)

// What CRIU says of a VMA, from its image.h as of 4.2 and its development branch.
// Each bit may change which VMAs are real and which of them are registered with
// userfaultfd, so that others are refused.
const (
	vmaRegular     = 1 << 0
	vmaStack       = 1 << 1
	vmaVsyscall    = 1 << 2
	vmaVDSO        = 1 << 3
	vmaForceRead   = 1 << 4 // until CRIU 1.5
	vmaHeap        = 1 << 5
	vmaFilePrivate = 1 << 6
	vmaFileShared  = 1 << 7
	vmaAnonShared  = 1 << 8
	vmaAnonPrivate = 1 << 9
	vmaSysVIPC     = 1 << 10
	vmaSocket      = 1 << 11
	vmaVVAR        = 1 << 12
	vmaAIORing     = 1 << 13
	vmaMemfd       = 1 << 14
	vmaShadowStack = 1 << 15
	vmaGuard       = 1 << 16
	vmaUprobes     = 1 << 17
	vmaExtPlugin   = 1 << 27
	// CRIU's own notes during a restore.
	vmaClose       = 1 << 28
	vmaNoProtWrite = 1 << 29
	vmaPremapped   = 1 << 30

	knownVMA = vmaRegular | vmaStack | vmaVsyscall | vmaVDSO | vmaForceRead | vmaHeap | vmaFilePrivate | vmaFileShared |
		vmaAnonShared | vmaAnonPrivate | vmaSysVIPC | vmaSocket | vmaVVAR | vmaAIORing | vmaMemfd | vmaShadowStack |
		vmaGuard | vmaUprobes | vmaExtPlugin | vmaClose | vmaNoProtWrite | vmaPremapped
)

// imageVersion is what the inventory has since CRIU 1.6. Images before that have
// no common magic.
const imageVersion = 2
