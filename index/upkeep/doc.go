// Package upkeep keeps a store in order: it gives back what nobody uses (GC), finds damage (Verify), and stores anew
// smaller what was stored fast (Optimize). One collection, verification or batch runs at a time.
//
// # Collection
//
// GC notes, in one bit per 4 KiB of pack, the slots that the manifests of all checkpoints use, and gives the rest back
// pack by pack. Besides look-ups and commits, which package chunks sees to, the manifest of a sealed checkpoint leads
// to a slot. If it was sealed before the walk, its slots are noted. If it was sealed since, its draft was open when the
// walk began, and pins all its slots, those it wrote and those that look-ups gave it.
//
// Slots that no journal lists are given back only in a pack that takes no appends and of which none waits for a
// commit: nobody was told of them, or a failed write or a crash lost them. What cannot be told is kept: see GC.
//
// A journal that was put aside may name checkpoints that nothing else names, with chunks in its pack and in earlier
// ones: gc gives nothing of these packs back as long as the journal is there.
//
// Badger says of a key that lies where it cannot read that there is none, or gives an older record of it. So before gc
// believes what it does not find, it has all tables of the index read. Journals, index and open store must tell of the
// same roots, the index none older than a journal does (rootsThere). Else gc ends, and repair puts it right. What is
// lost otherwise is kept: records of journals that the index should have (package chunks, needs), and slots of chunks
// whose last place it may have lost (HasLost). All that gc decides by the index is read before the tables are read once
// more. What the index loses while packs are swept is kept by the same rules.
//
// # Optimization
//
// Optimize stores chunks anew smaller (optimize.go), in a slot that is synced and read back before the index points to
// it. It holds gcMu, so no collection runs until pins of the old slot are pins of the new one. A moved chunk may lie in
// a pack that is younger than the checkpoint that uses it. So where gc decides by age what may be in use, it counts all
// packs up to the last one that chunks were moved to.
//
// # Verification
//
// Damage is recorded before it is reported. A verification that was interrupted can go on. What it had read is known by
// a sum over the ids and places of the slots, which must be that of the slots listed now: so it is valid for the same
// slots only. Damage is recorded before the sum is saved, and what is recorded as damaged is looked at again
// (verifyprogress.go).
//
// # Lock order
//
// gcMu, (locks of packages roots, chunks and reading); within a verification progress.saving and progress.mu.
package upkeep
