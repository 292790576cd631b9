// Package feed brings one checkpoint's memory to the processes of one restore: it joins the images (what is where), the
// queue (what comes when), the profile (what came first the last time) and the lazy-pages server with its guardian (who
// waits).
//
// A Feed belongs to one process, the provider of package uffd. When that is killed, the guardian starts another, which
// takes the Feed over by [Takeover] and goes on; bytes that have arrived stay, and those that were on their way are
// fetched again.
//
// # A first restore
//
// Without a profile nobody knows what the processes need first. The sweep would be in the way twice: it takes disk and
// processors from the faults, and pages that it brings ahead of a fault are never seen as a first touch. So it waits
// until faults have become rare; see delayedSweep.
//
// # CUDA
//
// As soon as a process that uses CUDA runs again, the driver copies all VRAM out of its memory, on many threads. A
// sweep that waits would hold that up, and replaying a profile of it is slower than the files' own order, for it has
// more and smaller runs. So the sweep of such a restore begins at once, and touches after the resume are not recorded.
// With RecordGPU they are recorded, and the sweep waits.
package feed
