package storage

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/fiemap.h and linux/fs.h.
const (
	fsIocFiemap      = 0xC020660B // FS_IOC_FIEMAP
	fiemapExtentLast = 1          // FIEMAP_EXTENT_LAST
	extentsAtOnce    = 64
)

// extent is struct fiemap_extent.
type extent struct {
	logical, physical, length uint64 // bytes
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// extentMap is struct fiemap.
type extentMap struct {
	start, length uint64 // bytes
	flags, mapped uint32
	count, _      uint32
	extents       [extentsAtOnce]extent
}

// mapped gives how many bytes of a range have room on disk. Unlike SEEK_DATA it counts room that was allocated and
// never written. Fails with EOPNOTSUPP or ENOTTY where the file system cannot tell.
func mapped(fd int, off, n int64) (sum int64, err error) {
	for end := off + n; off < end; {
		m := extentMap{start: uint64(off), length: uint64(end - off), count: extentsAtOnce}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFiemap, uintptr(unsafe.Pointer(&m)))
		if errors.Is(errno, unix.EINTR) {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		from := off
		for _, e := range m.extents[:min(m.mapped, extentsAtOnce)] {
			first, last := int64(e.logical), int64(e.logical+e.length)
			sum += max(0, min(last, end)-max(first, off))
			off = max(off, last)
			if e.flags&fiemapExtentLast != 0 {
				return sum, nil
			}
		}
		if off == from {
			break
		}
	}
	return sum, nil
}

// written gives how many bytes of a range were written, for file systems that tell no more: tmpfs, NFS.
func written(fd int, off, n int64) (sum int64, err error) {
	for end := off + n; off < end; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return 0, err
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return 0, err
		}
		sum += max(0, min(hole, end)-min(data, end))
		off = hole
	}
	return sum, nil
}
