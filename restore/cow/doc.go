// Package cow finds the memory that processes of a checkpoint share because one was forked by the other: pages
// that both still have as they were.
//
// # Why
//
// A page that comes on demand is a copy of its own in each process, for nothing in userfaultfd puts one page into two
// address spaces. Pages that parent and child shared would multiply: a server with eight children and 10 GB would need
// 90. Only a fork makes pages shared, and CRIU's tasks fork long before their memory is registered. So these pages have
// to be there at the fork. CRIU can do that: it maps what it reads by itself in the parent before the fork, and a child
// keeps each page that equals its own. It only has to be told which pages these are, and no others may be left to it,
// because the processes wait for what it reads.
//
// # How equal pages are found
//
// Candidates are the pages that both tasks have in a mapping which CRIU treats as inherited. Where the store has the
// same chunk for both they are equal, which costs no payload. Zero runs are left to come on demand: they then take no
// memory at all. What remains lies around pages that one of the two has changed, or is not shared at all; it has to be
// read, in windows of about half a chunk. Windows beside a chunk in common are always read. In each region of 128 MiB,
// four of the other windows are looked at first, in even distances. If these have no equal page, the rest of the region
// counts as changed. If three quarters of their pages are equal, the region is left to CRIU without a further look,
// because CRIU compares once more in any case, and reading all twice took as long as the restore. Otherwise all of it
// is read. What is overlooked costs memory, never correctness, and it is little: if a twentieth of a region is still
// shared, in single pages, four windows of 32 pages show some of it with a probability of 99.8 %. Where nothing is
// shared 0.5 MiB of each 128 are read.
package cow
