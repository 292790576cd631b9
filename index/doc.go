// Package index is the store: a folder that keeps checkpoints as manifests over content-addressed chunks, each chunk
// once. It opens and makes one, and offers what the rooms below do for it.
//
// "The store" is the folder, and this package; "the index" is Badger in it, here and in every room.
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
// From the bottom up; each imports only rooms above it in this list, and its package comment tells its algorithm
// and the order of its locks.
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
// Opening, listing, verifying, collecting and repairing neither cut nor delete what journals and index together
// cannot explain (package chunks). Repair writes a damaged journal anew from the index. Where the index is gone as
// well, or does not tell all, the damaged journal is put aside. It may then speak of checkpoints that nothing else
// knows of, whose chunks lie in its pack and in those before: gc gives nothing of these back as long as it is
// there. Repair reads what was put aside again, and removes it once it is whole.
//
// # Why gc takes nothing that is used
//
// A slot that is punched was journalled as dead before, or was never journalled and never will be; and nobody is
// told of it again, or reads it on behalf of a checkpoint or a draft. Three things can lead to a slot: the manifest
// of a sealed checkpoint (package upkeep), a look-up by content, and a commit (package chunks). Pins stand for what
// drafts use, whose manifests are not where gc looks.
//
// # Lock order
//
// Across the rooms: upkeep's gcMu; drafts' Draft.mu, Draft.writes and node.mu; roots' updateMu; chunks' commitMu and
// sweepMu; (pack's own locks); roots' mu; chunks' pinMu, Pins.mu, damage.mu and ingest.mu; reading's cache.mu.
package index
