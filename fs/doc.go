// Package fs shows a store as a file system: the root is the image directory of one checkpoint, .checkpoints/NAME is
// every other one.
//
// # What a directory shows
//
// A directory is a content layer under a scratch layer. Content is a sealed checkpoint, which never changes, or a
// draft, which takes writes until it is sealed. Scratch is what CRIU and its callers leave beside the images: logs,
// pidfiles, sockets, stats-restore. It belongs to the directory it was made in, is never part of a checkpoint and is
// gone with it, or after unmounting. In a sealed checkpoint everything new is scratch, save *.img files, which are
// refused: a dump that went to scratch would be lost. In a draft everything new is content, save the by-products (see
// byProduct). The kind of a file is settled when it is made; a rename keeps it.
//
// A draft is made by mkdir .checkpoints/NAME, or is the root itself (Options.New). It is sealed by Server.Seal, when
// CRIU closes a stats-dump it wrote there (its last act in a successful dump; copying an old image directory does not
// count), or at unmounting if it holds a complete dump. Its nodes stay: open handles outlive the sealing, and a look-up
// at that moment finds either the draft or the checkpoint. fsync reports errors but forces nothing; content is durable
// once sealed.
//
// # The root
//
// With Options.Checkpoint or Options.New the root shows that checkpoint for ever. Otherwise it follows the last sealed
// checkpoint that has CRIU's inventory. Checkpoints without one, which stores of earlier versions may hold, can be read
// below .checkpoints only. A restore opens the image directory and then its files one by one, so the root must not
// change below it: while anyone has the root directory open, it stays; the newer checkpoint appears after the last
// close. Entries of a following root are never cached by the kernel, which costs one LOOKUP per open.
//
// # Scratch
//
// The contents of a scratch file are a file without a name on the store's file system, or in memory if the file system
// is nearly full or has no such files. By-products are opened with FUSE passthrough where the kernel has it (Linux 6.9,
// root): writes go straight to that file, and a line of a log costs no round trip to the server. Where it has not, the
// server writes them there.
//
// Scratch is bounded, in bytes (Options.ScratchBytes) and in files (4096, or a quarter of the descriptors that the
// process may have). The bound does not hold for by-products: a dump must not fail because of the logs of earlier ones.
// The oldest of them that nobody has open are given up instead, all but the last. Other scratch is never given up; it
// gets ENOSPC.
//
// # What the kernel may keep
//
//	                     entries  attributes  pages (KEEP_CACHE)
//	following root       no       no          –
//	.checkpoints         no       no          –
//	draft                no       no          no: direct I/O, see draftFlags
//	sealed               1 h      1 h         yes: immutable
//	scratch              no       no          yes; none with passthrough
//
// Pages are never invalidated by a change of mtime (explicit invalidation). A file has one inode number however it is
// reached, and so one set of cached pages; a directory has one for each way to it, since the kernel allows a directory
// one place only. Numbers of sealed checkpoints are the same at every mount.
//
// # What is given back
//
// A goroutine of the mount, the janitor, wakes when checkpoints come, go or are read for the first time. It frees the
// scratch of those that are gone, unloads the tables of those not used for long, and asks the kernel to forget their
// files (FUSE_NOTIFY_PRUNE, before Linux 6.18 by name): it would keep every name it has seen, and with it a node here.
// What is in use stays.
//
// # Reading
//
// A READ of sealed content borrows the store's buffers and sends them by writev without a copy. It answers with exactly
// the bytes asked for, up to the end of the file, or with EIO: a short answer inside pages-N would make the kernel
// shrink the file and CRIU spin for ever.
//
// # Lock order
//
// Server.mu, then view.mu, then catalog.mu, then image.mu, then scratchNode.mu (parent before child), then pool.mu.
// image.sealing comes before all of these; it is held while a draft is sealed. No other lock is held then, while
// content of a checkpoint is read or written, or while the kernel is asked to forget.
package fs
