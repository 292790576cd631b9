// Package storage is what the store does to files: one interface with three implementations.
//
//   - Disk is the file system of this machine. Slots are read and written with one preadv or pwritev each, past the
//     page cache where the file system can.
//   - Mem keeps everything in memory and is strict. It knows what was synced and what was not, and Crash gives one of
//     the states in which a power cut may leave the files.
//   - Faulty wraps either and fails the calls that a rule chooses.
//
// # What a crash may do
//
// A write, a hole or a truncation that File.Sync has not covered survives whole, in part (by sectors of 512 bytes,
// holes by pages) or not at all, each independently of the others. A file that was created, renamed or removed since
// its folder was last synced (SyncDir) may be there under its new name, its old one, or not, each independently too.
// A rename is one change: it survives or not.
//
// # What a failed sync does
//
// Linux reports a failed write-back once and marks the pages clean: the next sync succeeds, and the data is not on
// the disk. Faulty does that to Mem (Drop): what the sync was to cover is partly durable or gone, whatever later
// syncs say, and may still be read until the crash.
package storage
