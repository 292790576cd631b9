// Package upkeep keeps a store in order: it gives back what nobody uses (GC), finds damage (Verify), and stores anew
// smaller what was stored fast (Optimize). One collection, verification or batch runs at a time.
//
// # Collection
//
// GC notes, in one bit per 4 KiB of pack, the slots that the manifests of all checkpoints use, and gives the rest
// back pack by pack. Besides look-ups and commits, which package chunks sees to, the manifest of a sealed
// checkpoint leads to a slot. Sealed before the walk: its slots are noted. Sealed since: its draft was open when
// the walk began, and pins all its slots, those it wrote and those it was told of.
//
// Slots that no journal lists are given back only in a pack that takes no appends and of which none waits for a
// commit: nobody was told of them, or a failed write or a crash lost them. What cannot be told is kept: see GC.
//
// A journal that was put aside may speak of checkpoints that nothing else knows of, whose chunks lie in its pack
// and in those before: gc gives nothing of these back as long as it is there.
//
// # Optimization
//
// Optimize stores chunks anew smaller (optimize.go), in a slot that is synced and read back before the index points
// to it. It holds gcMu, so no collection runs until whoever pins the old slot pins the new one. What was moved may
// lie in a pack younger than the checkpoint that uses it, so wherever gc tells by age what may be in use, all packs
// up to the last that chunks were moved to count.
//
// # Verification
//
// Damage is recorded before it is reported. A verification that was interrupted can go on. What it had read is
// known by a sum over the ids and places of the slots, which must be that of the slots listed now: it holds for the
// same slots only. Damage is recorded before the sum is saved, and what is recorded as damaged is looked at again
// (verifyprogress.go).
//
// # Lock order
//
// gcMu, (locks of packages roots, chunks and reading); within a verification progress.saving and progress.mu.
package upkeep
