package cipher

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockedMemory gives a page for keys: never swapped out, in no core dump, not inherited by children. It makes the
// process undumpable, so that neither a core dump nor another process of its user shows what else it has in memory. A
// page that cannot be locked, as where the limit is 0, is used all the same: it is not dumped either.
func lockedMemory() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	_ = unix.Mlock(b)
	if err := unix.Madvise(b, unix.MADV_DONTDUMP); err != nil {
		return nil, err
	}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return nil, err
	}
	return b, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
