// Package object is the form of what a bucket holds for a store: packs, and lists that say what is in them. It is pure:
// it neither reads nor writes a bucket.
//
// # Packs
//
// A pack object is immutable and has a name that no other has (Name). It holds slots as a pack of a store does:
// stored chunks, each padded with zeros to 4 KiB at a 4 KiB-aligned offset, so that a node keeps what it has fetched
// at the same offsets of a sparse file. Behind them lies the list of the slots, as journal frames (package pack), and
// at the very end a trailer
//
//	u32 magic "GPKO" | u32 version | u64 offset of the list | u64 its length | u32 0 | u32 CRC-32C of these 28 bytes
//
// little-endian. The list begins with a header that names the store; its chunks say that they lie in pack 1, this one.
// Nobody needs it to restore: it is for those who build an index anew.
//
// # Lists
//
// A list says where chunks lie, in any number of pack objects, and carries metadata. That of a checkpoint has all its
// chunks and all its records: it is all that a node needs before it fetches payload. That of an index delta has the
// chunks that one seal added, for the dedupe of others. A list is a zstd stream of journal frames: a header, a record
// for each pack (key "pack", its number in the value, from 1 on), the chunks in the order of their places, whose
// locations name packs by these numbers, the metadata, and a record that counts them all (key "end"). A list without
// that record was cut short.
//
// What is decoded is bounded: a reader of a list gets its records one after the other, and keeps what it wants.
package object
