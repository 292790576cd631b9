// Package sigbus lets the process survive a write to a mapped file for which the disk has no room, and a read of a
// mapped page that the disk cannot give.
//
// Badger writes its log, its value log and its tables through shared mappings of sparse files. On a full disk the
// kernel then raises SIGBUS in one of Badger's own goroutines, where nobody can recover: Go ends the process, and with
// it every mount and every restore that the daemon serves. Badger has no option to preallocate, and a check of free
// space beforehand fails if another process fills the disk at the same moment.
//
// So the signal is taken before Go's runtime sees it. The handler, a few instructions of assembly:
//
//  1. removes the marker files that were given to Watch: from then on nobody trusts what the mapped files hold on disk,
//     a crash included;
//  2. puts an empty page of anonymous memory where the fault was, and lets the program go on;
//  3. counts.
//
// A page that faults was a hole of its file, or is not readable. In the first case the process reads back what it
// writes there, but the disk does not have it. In the second it reads zeros, which is why the files must guard their
// contents by checksums, as Badger's tables and the index's values do.
//
// Any other SIGBUS goes to Go's runtime as before. The handler exists for amd64; elsewhere a full disk can still end
// the process.
//
// Source of the layout: siginfo_t in include/uapi/asm-generic/siginfo.h (si_code at 8, si_addr at 16; BUS_ADRERR is 2).
package sigbus
