package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/gpucr/gpucr-fs/index"
)

var classErrno = map[index.Class]syscall.Errno{
	index.Other:       syscall.EIO,
	index.NotFound:    syscall.ENOENT,
	index.NoStore:     syscall.EIO,
	index.Exists:      syscall.EEXIST,
	index.InUse:       syscall.EBUSY,
	index.Corrupt:     syscall.EIO,
	index.NoSpace:     syscall.ENOSPC,
	index.ReadOnly:    syscall.EROFS,
	index.Invalid:     syscall.EINVAL,
	index.Unsupported: syscall.EOPNOTSUPP,
}

// errnoOf is the one place where a class of error becomes an errno.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if c := index.ClassOf(err); c != index.Other {
		return classErrno[c]
	}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return syscall.EINTR
	}
	return syscall.EIO
}
