// Package criuimg reads the parts of a CRIU image directory that tell where a
// process's memory lives: inventory, pstree, mm and pagemap images, through an
// io/fs.FS, so that a plain directory, a store and a test's map all serve.
//
// The memory of a task is described by two images. mm-PID lists its VMAs.
// pagemap-PID lists runs of pages in rising address order, each with flags:
// PRESENT runs have their bytes in pages-ID at an offset which is the running
// sum of the PRESENT runs before them, PARENT runs have them in the image
// directory named by the link "parent", and LAZY runs may be left to a
// lazy-pages server. Load keeps the LAZY runs, cuts them at VMA boundaries
// (userfaultfd works within one VMA at a time), follows PARENT runs down the
// chain of directories, and returns for every task the ranges with the name of
// the file and the offset that hold them.
//
// All sizes and offsets are bytes unless a name says pages. Every image is
// input from outside: sizes in headers are not trusted before the bytes behind
// them have been read, and malformed images give ErrCorrupt, never a panic.
//
// Images may be of a later CRIU. Fields and kinds of files that are not known are
// passed over. Flags that may change where bytes belong are refused by name, with
// ErrUnknown; tests/criukinds has a table of all that CRIU knows.
package criuimg
