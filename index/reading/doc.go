// Package reading reads what is sealed: checkpoints, their files, and walks over their manifests.
//
// A File finds the runs of a range in its segments, takes each chunk from the cache or reads it from its pack, checks
// the guard and decodes. Fetches in flight are joined. Chunks that lie side by side are read with one system call.
// Buffers are borrowed (Slices), not copied. Readers who keep what they read (ReadInto) bypass the cache.
//
// Where a chunk lies is remembered beside its segment, and looked up again when chunks have been moved since.
//
// # Lock order
//
// cache.mu and segmentCache.mu are held for a look or a note, and no other lock with them.
package reading
