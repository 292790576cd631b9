// Package cow finds the memory that processes of a checkpoint share because one was forked by the other: pages
// that both still have as they were.
//
// # Why
//
// A page that comes on demand is a copy of its own in each process, for nothing in userfaultfd puts one page into
// two address spaces. Pages that parent and child shared would multiply: a server with eight children and 10 GB
// would need 90. Only a fork makes pages shared, and CRIU's tasks fork long before their memory is registered. So
// these pages have to be there when they do. CRIU can do that: what it reads by itself it maps in the parent
// before the fork, and a child keeps each page that equals its own. All that is needed is to tell it which pages,
// and to leave no other to it, because the processes wait for what it reads.
//
// # How equal pages are found
//
// Candidates are the pages that both tasks have in a mapping which CRIU treats as inherited. Where the store has the
// same chunk for both they are equal, which costs no payload. Zero runs are left to come on demand: they then take no
// memory at all. What remains lies around pages that one of the two has changed, or is not shared at all; it has to be
// read, in windows of about half a chunk. Those beside a chunk in common always are. Of the others of each region of
// 128 MiB four are looked at first, in even distances; without one equal page in them the rest of the region is taken
// for changed. With three quarters of their pages equal it is left to CRIU without a look, which compares once more in
// any case: reading all twice took as long as the restore. Else all of it is read. What is overlooked that way costs
// memory, never correctness, and it is little: of a region of which a twentieth is still shared, in single pages, four
// windows of 32 pages show some with a probability of 99.8 %. Where nothing is shared 0.5 MiB of each 128 are read.
package cow
