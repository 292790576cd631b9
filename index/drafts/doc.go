// Package drafts writes checkpoints: a Draft is a tree of files that are written in any order and become a sealed
// checkpoint at once, or nothing.
//
// A DraftFile takes sequential writes page by page: zero pages become runs, the others fill a chunk until the
// splitter cuts it, which then goes to the store of chunks while the next is filled. A large write to the end of a
// file is answered before that; see behind.go. The manifest of a file holds runs and chunk references and is spilled
// to the index a segment (4096 chunks) at a time: memory is bounded by the open files, whatever their size.
// Options.Cuts may name further cuts once all files are there: Seal then cuts around them anew and keeps every other
// chunk.
//
// What a draft refers to is pinned until it and its files are closed. What is being written is in the index only until
// it is sealed, so a lost index loses nothing that was promised. Sealing journals table and segments, and last the root
// record. Chunks that were lost to a failed sync meanwhile keep a draft that refers to them from being sealed.
//
// # Lock order
//
// Draft.mu, Draft.writes, node.mu, (locks of packages roots, chunks and reading).
package drafts
