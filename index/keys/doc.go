// Package keys is Badger as the store uses it: an index over what the journals of the packs hold, and the records of
// what is being written. Nothing else imports Badger.
//
// Chunks, metadata and marks are the three things in it; each value carries a checksum over its key and itself, since
// Badger answers a damaged value with an empty one. What it lacks can be built anew from the journals.
//
// The process survives a full disk: see full_linux.go and package sigbus.
//
// Lock order: DB.mu, DB.turn.
package keys
