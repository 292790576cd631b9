// Package index is the store: a folder that keeps checkpoints as manifests over content-addressed chunks, each chunk
// once. It opens and makes one, and offers what the rooms below do for it.
//
// "The store" is the folder, and this package. "The index" is Badger in it, in this package and in those below, which
// are called rooms.
//
// # On disk
//
//	config.json   format, identity, chunking and compression (Config)
//	config.copy   the same, with a sum: Repair makes one of the other
//	lock          held by the one process that has the store open; names it. Shared by those who have it open for
//	              reading only (readonly.go)
//	index/        Badger: chunk id → location, manifests, profiles, and how far each journal has been applied
//	packs/        payload and journals (package pack)
//	hot/          for a checkpoint its hot set (package roots)
//	verify.progress  how far a verification has come that did not end
//
// The journals are the truth and the log; Badger is an index over them that can be rebuilt (Repair). What is being
// written lives in Badger alone until it is sealed, so a lost index loses nothing that was promised.
//
// # The rooms
//
// They are listed from the bottom up. Each imports only rooms above it in this list. Its package comment explains its
// algorithm and the order of its locks.
//
//	storage, chunk, crc32c, arena   files that a test can crash; codecs; sums; buffers
//	pack, manifest                  payload and journals; records
//	keys                            Badger
//	fault                           errors, classified once
//	chunks                          stores chunks: ingest, commit, pins, damage, recovery, what is given back
//	roots                           root records: names, tags, labels, removal
//	reading                         sealed files, the cache, walks over manifests
//	drafts                          what is written, until it is sealed
//	upkeep                          gc, verify, optimize
//	repair                          the index built anew
//	accounting                      what things take
//
// # What is never given up
//
// Opening, listing, verifying, collecting and repairing neither cut nor delete what journals and index together cannot
// explain (package chunks). Repair writes a damaged journal anew from the index. If the index is gone as well, or lacks
// something, the damaged journal is put aside. Such a journal may name checkpoints that nothing else names, with chunks
// in its pack and in earlier ones. So gc gives nothing of these packs back as long as the journal is there. Repair
// reads it again, and removes it once it is whole.
//
// # What a killed process has left
//
// The next process sees changes that the disk may not have yet. A power cut takes them, and what was built on them. So
// a process that opens the store first makes durable what it builds on: the names in the folders of the store and of
// its packs, the journals behind their marks (package chunks), Badger's list of tables (package keys). Badger's logs
// are synced with the first commit. What is cut off a journal is written over first (package pack).
//
// # Why gc takes nothing that is used
//
// Before a slot is punched it is journalled as dead, unless no journal has it or ever will. After that no look-up gives
// it, and no checkpoint or draft reads it. Three things can lead to a slot: the manifest of a sealed checkpoint
// (package upkeep), a look-up by content, and a commit (package chunks). What drafts use is pinned, because gc does not
// see their manifests.
//
// # Lock order
//
// Across the rooms: upkeep's gcMu; drafts' Draft.mu, Draft.writes and node.mu; roots' updateMu; chunks' commitMu and
// sweepMu; (pack's own locks); roots' mu; chunks' pinMu, Pins.mu, damage.mu and ingest.mu; reading's cache.mu.
package index
