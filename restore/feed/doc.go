// Package feed brings one checkpoint's memory to the processes of one restore: it joins the images (what is where), the
// queue (what comes when), the profile (what came first the last time) and the lazy-pages server with its guardian (who
// waits).
//
// A Feed belongs to one process, the provider of package uffd. When that is killed, the guardian starts another, which
// takes the Feed over by [Takeover] and goes on; the bytes that were there stay, those on their way are fetched again.
//
// # A first restore
//
// Without a profile nobody knows what the processes need first, and everything else must not be in its way, twice: the
// two share disk and processors, and what the sweep brings ahead of a fault is never seen as a first touch. So the
// sweep waits until faults have become rare; see delayedSweep.
//
// # CUDA
//
// As soon as a process that uses CUDA runs again, the driver copies all VRAM out of its memory, on many threads.
// Waiting would hold that up, and a profile of it replayed is slower than the files' own order: it is cut into more and
// smaller runs. So the sweep of such a restore begins at once and gives way to no fault, and what is touched after the
// resume is not recorded; RecordGPU has it recorded, and the sweep wait, nevertheless.
package feed
