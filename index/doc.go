// Package index is the store: a folder that keeps checkpoints as manifests over content-addressed chunks, each chunk once.
//
// # On disk
//
//	config.json   format, identity, chunking and compression (Config)
//	lock          held by the one process that has the store open; names it. Shared by those who have it open for reading only (readonly.go)
//	index/        Badger: chunk id → location, manifests, profiles, and how far each journal has been applied
//	packs/        payload and journals (package pack)
//	verify.progress  how far a verification has come that did not end
//
// The journals are the truth and the log; Badger is an index over them that can be rebuilt (Repair). What is being written lives in Badger alone until it is
// sealed, so a lost index loses nothing that was promised.
//
// # Ingest
//
// A DraftFile takes sequential writes page by page: zero pages become runs, the others fill a chunk until the splitter cuts it. Full chunks go to a pool of workers that
// hash, look up, compress and append, while the writer fills the next chunk. The manifest of a file holds runs and chunk references and is spilled to Badger a segment (4096
// chunks) at a time: memory is bounded by the workers and the open files, whatever the size of the file.
//
// Options.Cuts may name further cuts once all files are there: Seal then cuts around them anew and keeps every other chunk.
//
// # Commit order
//
// Payload, sync packs, journal frames, sync journals, Badger batch, sync Badger. Every CommitEvery bytes, and at Seal, whose last key is the root record. After a
// crash Open applies to Badger what the journals hold beyond the applied mark.
//
// # What cannot be accounted for
//
// Opening, listing, verifying, collecting and repairing neither cut nor delete what journals and index together cannot explain. It stays in its place or is put aside under
// another name, and is reported (SetAside). The mark tells torn from damaged: nobody is told that a commit is done before the mark is set, so half a frame behind the mark is
// what a crash left, and nothing was promised. Bytes before the mark that are no frame, a journal shorter than its mark, and a journal that is gone are damage. Then
//
//   - the index serves reads as before, for it has all that the journal told up to the mark;
//   - the pack takes no more appends, and gc leaves it alone and goes on with the others;
//   - with the bytes or the file put back all is as it was;
//   - Repair writes the journal anew from the index. Where the index is gone as well, or does not tell all, the damaged journal is put aside. It may then speak of checkpoints
//     that nothing else knows of, whose chunks lie in its pack and in those before: gc gives nothing of these back as long as it is there. Repair reads what was put aside
//     again, and removes it once it is whole.
//
// # A failed sync
//
// What a failed sync was to cover is lost for the store, whatever can still be read of it (condemn.go): content is stored anew when it comes by again, a draft that refers to
// lost chunks is not sealed. Keys of a failed commit may be in a journal nevertheless, so the next commit says what is true of their roots. A failure of Badger loses
// nothing, for the journals are ahead of it; the commit fails, and is taken back in the same way.
//
// # Reading
//
// A File finds the runs of a range in its segments, takes each chunk from the cache or reads it from its pack, checks the guard and decodes. Fetches in flight are
// joined. Chunks that lie side by side are read with one system call. Buffers are borrowed (Slices), not copied.
//
// # Removal
//
// Remove deletes records only. GC marks, in one bit per 4 KiB of pack, what the manifests of all checkpoints use, and
// gives the rest back pack by pack. What it relies on:
//
// A slot that is punched was journalled as dead before, or was never journalled and never will be; and nobody is told of
// it again, or reads it on behalf of a checkpoint or a draft. Three things can lead to a slot.
//
//  1. The manifest of a sealed checkpoint. Sealed before the marking: its slots are marked. Sealed since: its draft was
//     open when the marking began, and pins all its slots, those it wrote and those it was told of. Pins of a draft last
//     until it and its files are closed, and while a collection runs none is forgotten (pins.go).
//  2. A look-up by content (ingest). It finds a slot and pins it with sweepMu held for reading. A pack is planned, its dead
//     journalled, and the index made to forget them in one go with sweepMu held for writing: whoever looked up before has
//     pinned the slot, whoever does afterwards is not told of it.
//  3. A commit, which puts into the index what has been journalled. commitMu is held as well, and what an earlier failure
//     left out is indexed first: all that the journal lists is in the index and no longer among the recent chunks, so
//     taking it out of the index is final. Slots that no journal lists are given back only in a pack that takes no
//     appends and of which none waits for a commit: nobody was told of them, or a failed write or a crash lost them.
//
// A journal is written anew, and keys are moved out of a pack that goes, with commitMu held too, from what the journal
// says then.
//
// What cannot be told is kept: see GC.
//
// # Moves
//
// Optimize stores chunks anew smaller (optimize.go), in a slot that is synced and read back before the index points to it.
// It holds gcMu, so no collection runs until whoever pins the old slot pins the new one. A reader who knows the old slot
// finds its guard wrong once it has been given back, and looks the chunk up again: no slot is used twice while the store is
// open. What was moved may lie in a pack younger than the checkpoint that uses it, so wherever gc tells by age what may be
// in use, all packs up to the last that chunks were moved to count.
//
// # Damage
//
// A chunk that cannot be read is recorded under its slot, in the journals, before Verify reports it (damage.go). When its
// content comes by again it is stored anew, which heals every checkpoint that uses it.
//
// A verification that was interrupted can go on. What it had read is known by a sum over the ids and places of the slots,
// which must be that of the slots listed now: it holds for the same slots only. Damage is recorded before the sum is
// saved, and what is recorded as damaged is looked at again (verifyprogress.go).
//
// # Names and tags
//
// A word is the name of one checkpoint or the tag of one sealed checkpoint, never both. updateMu is held from the look at
// root records to the end of the commit that replaces them, so that none comes back that was removed meanwhile. Sealing
// takes a draft's tags from those who bear them, in one frame of a journal.
//
// # Lock order
//
// gcMu, Draft.mu, Draft.writes, node.mu, updateMu, commitMu, sweepMu, (pack's own locks), mu, pinMu, pinner.mu, damage.mu,
// ingest.mu, cache.mu. Nothing is called back under mu.
package index
