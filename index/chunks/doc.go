// Package chunks is the store of chunks: it takes content, keeps each chunk once, says where it lies, and gives up what
// is journalled as dead. It does not know what the chunks are for; the packages that import it do.
//
// # Ingest
//
// Full chunks go to a pool of workers that hash, look up, compress and append, while the writer fills the next chunk.
// What has been appended and is not in the index yet is among the recent chunks; a look-up asks there first. What the
// index gives counts if the journal of the pack has the chunk alive there (package live): the index may show an older
// place. Memory is bounded by the workers and what CommitEvery lets through.
//
// # Commit order
//
// Payload, sync packs, journal frames, sync journals, Badger batch, sync Badger, mark. Every CommitEvery bytes, and
// whenever keys are to last. After a crash Recover applies to Badger what the journals hold beyond the applied mark.
// The batch notes how far the journals are on the disk (keys.DB.Durable); the mark, that Badger's disk has what they
// tell.
//
// # What cannot be accounted for
//
// Nothing here cuts or deletes what journals and index together cannot explain. It stays in its place or is put aside
// under another name, and is reported (package aside). The store notes how far each journal is on the disk, and syncs
// that note before it reports a commit as done. So half a frame behind that point is what a crash left, and nothing was
// promised. Bytes before that point that are no frame, a shorter journal, and a missing one are damage. Then
//
//   - the index serves reads as before, for it has all that the journal told up to the mark;
//   - the pack takes no more appends, and gc leaves it alone and goes on with the others;
//   - with the bytes or the file put back all is as it was.
//
// # A failed sync
//
// What a failed sync was to cover is lost for the store, whatever can still be read of it (lost.go): content is
// stored anew when it comes by again, a draft that refers to lost chunks is not sealed. Keys of a failed commit may
// be in a journal nevertheless, so the next commit says what is true of their roots. A failure of Badger loses
// nothing, for the journals are ahead of it; the commit fails, and is taken back in the same way.
//
// # What is given back
//
// Before a slot is punched it is journalled as dead, unless no journal has it or ever will. After that no look-up gives
// it, and no checkpoint or draft reads it. Three ways lead to a slot. This package sees to two of them, and package
// upkeep to the third, the manifests.
//
//  1. A look-up by content (ingest). It finds a slot and pins it with sweepMu held for reading. A pack is planned, its
//     dead journalled, and the index made to forget them in one go with sweepMu held for writing (MarkDead): an earlier
//     look-up has pinned the slot, a later one does not find it. Pins of a draft last until it and its files are
//     closed, and while a collection runs none is forgotten (KeepPins).
//  2. A commit, which puts into the index what has been journalled. commitMu is held as well, and what an earlier
//     failure left out is indexed first: all that the journal lists is in the index and no longer among the recent
//     chunks, so taking it out of the index is final.
//
// A journal is written anew, and keys are moved out of a pack that goes, with commitMu held too, from what the journal
// says then.
//
// # Moves
//
// A chunk gets another place only once that is synced and has been read back (Adopt). A reader who knows the old slot
// finds its guard wrong once it has been given back, and looks the chunk up again (ReadMoved): no slot is used twice
// while the store is open.
//
// # Damage
//
// A chunk that cannot be read is recorded under its slot, in the journals (damage.go). When its content comes by again
// it is stored anew, which heals every checkpoint that uses it.
//
// # Lock order
//
// commitMu, sweepMu, (live's locks), (pack's own locks), (RootRecords' locks), pinMu, Pins.mu, damage.mu, ingest.mu.
// lossMu is held for a look or a note.
package chunks
