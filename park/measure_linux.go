//go:build amd64

package park

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// tried tells whether a small ring without an array has large entries (IORING_SETUP_SQE128), by a descriptor of this
// process's. Every 64 bytes of its entries become a request that does nothing and says where it stands; which of them
// the kernel takes for an entry tells how far entries are apart. The ring is of no use to its program afterwards.
func (r *remaking) tried(pid int) (long bool, err error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, r.fd, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	base, _ := r.base()
	ring, err := unix.Mmap(fd, offSQ, int(base.End-base.Start), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(ring)) }()
	entries, err := unix.Mmap(fd, offSQEs, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(entries)) }()
	const userData = 32 // in struct io_uring_sqe
	clear(entries)
	for i := range pageSize / sqeSize {
		binary.LittleEndian.PutUint64(entries[i*sqeSize+userData:], uint64(i))
	}
	completion := 16
	if r.params.Flags&setupCQE32 != 0 {
		completion = 32
	}
	put := func(at, v uint32) { binary.LittleEndian.PutUint32(ring[at:], v) }
	put(r.params.CQ.Head, r.cqTail)
	put(r.params.SQ.Tail, r.sqHead)
	for n := range r.sqMask + 1 {
		index := (r.sqHead + n) & r.sqMask
		put(r.params.SQ.Tail, r.sqHead+n+1)
		done, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), 1, 0, 0, 0, 0)
		if errno != 0 || done != 1 {
			return false, fmt.Errorf("submit to it: %d, %w", done, errno)
		}
		at := int(r.params.CQ.CQEs) + int((r.cqTail+n)&r.cqMask)*completion
		put(r.params.CQ.Head, r.cqTail+n+1)
		switch said := binary.LittleEndian.Uint64(ring[at:]); {
		case index == 0 || 2*index >= pageSize/sqeSize:
		case said == uint64(index):
			return false, nil
		case said == 2*uint64(index):
			return true, nil
		default:
			return false, fmt.Errorf("entry %d is %d", index, said)
		}
	}
	return false, errors.New("no entry tells")
}
