// Package pack keeps chunk payload in large append-only files, each with a journal beside it.
//
// # Files
//
// NNNNNNNN.pack holds nothing but slots: a stored chunk padded with zeros to 4 KiB, at a 4 KiB-aligned offset. A raw
// chunk lies there byte for byte as in memory. The guard of a slot, CRC-32C, covers the padding too, so any flipped bit
// of a slot is seen.
//
// NNNNNNNN.journal says what the slots are, and carries the metadata that was committed while the pack was the newest.
// It is a sequence of frames
//
//	u32 magic "GPJF" | u32 length | u32 CRC-32C of length and payload | payload
//
// little-endian, whose payload is a sequence of records: the header (first of the file), a chunk, a dead chunk, a key
// with its value. The journals are the store's write-ahead log: all of them together suffice to rebuild the index. A
// frame is written only after the payload that it lists is on stable storage.
//
// # Appending
//
// Append reserves a slot and writes it, many goroutines at once. Commit then syncs the packs, and writes frames for
// what was appended since the last Commit and for the given keys, older packs first. Each frame is synced before the
// next: a frame with keys is never durable before the chunks that went before it.
//
// # When the disk fails
//
// All files are reached through package storage. What a failed sync covered counts as lost: the kernel reports a failed
// write once and then calls the pages clean, so neither a later sync nor a successful read proves anything.
//
//   - A pack whose sync failed takes no more appends, and its chunks that are not committed are lost; Commit names
//     them. A slot that was being written meanwhile is written anew into the next pack. Chunks are not kept in memory
//     for this, nor read back and written elsewhere: these would be up to 256 MiB, on a disk that has just failed. A
//     draft that needs a lost chunk gets an error; its content is stored again with the next dump.
//   - A journal whose write or sync failed is written anew as a whole: what was durable in it, held against its sums,
//     and the frames behind. Where that fails too, the pack is condemned (Condemned) and the commit fails. Whether the
//     disk has the frames is not known then: nothing is added to that journal, no slot of the pack is given back, and
//     the next keys go to a new pack.
//   - A journal that was rewritten, and its folder not synced, is condemned likewise: either file has all that counts,
//     but a frame behind the new one could be lost.
//   - A pack that could not be begun leaves at most empty files, and its number is not used again.
//
// A full disk is no such failure if the write itself fails: all that is pending stays pending. What went to the journal
// is cut off at once, durably, the last frame first. It is written over before: a cut that is not synced could be
// undone by a power cut long after somebody has opened the store and built on the rest. If the cut fails, these bytes
// stay behind the end, where nobody reads them, and the cut is tried again before the next frames.
//
// # Giving space back
//
// A dead chunk is first journalled as dead, then forgotten by the index, and only then is its slot punched out. A pack
// without live chunks is removed, the pack first: a journal that a crash leaves alone says that all was dead.
//
// # Opening
//
// Open changes nothing. A pack takes appends again only if both its files end where the last frame and the last slot
// that it lists end (Resume). What lies behind is neither cut off nor written over: it is either what a crash left of
// something that was never promised, or damage, and the bytes alone do not show which. A frame that a crash left half
// written (EndAt, which the index decides) is cut off when the next frame goes there.
//
// A pack without a journal stays, and its slots can be read. A journal that was damaged and has been written anew is
// kept under another name, NNNNNNNN.journal.set-aside-N, as long as it may hold something that nothing else holds. A
// number that any file has is not used again.
//
// Lock order: Set.commitMu, Set.mu.
package pack
