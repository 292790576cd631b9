package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// Source is the checkpoint behind an image directory of a mount.
type Source struct {
	Store      string `json:"store"` // the store's folder, as the daemon sees it
	Checkpoint string `json:"checkpoint"`
	ID         string `json:"id"` // of the checkpoint; unique for ever
}

// iocSource asks an image directory what it is: _IOR('g', 0x57, char[sourceSize]). The answer is a Source as JSON,
// ended by a NUL. A path would not tell: it may lead through a bind mount, or to another mount in another namespace.
const (
	iocSource  = 2<<30 | sourceSize<<16 | 'g'<<8 | 0x57
	sourceSize = 8192
)

var _ gofs.NodeIoctler = (*dirNode)(nil)

// Ioctl answers iocSource for the image directory of a sealed checkpoint: EINVAL for any other directory, ENODATA while
// a checkpoint is being written.
func (n *dirNode) Ioctl(
	_ context.Context,
	_ gofs.FileHandle,
	cmd uint32,
	_ uint64,
	_, out []byte,
) (int32, syscall.Errno) {
	if cmd != iocSource {
		return 0, syscall.ENOTTY
	}
	img, dir, err := n.content()
	if err != nil {
		return 0, errnoOf(err)
	}
	if img == nil || dir != "." {
		return 0, syscall.EINVAL
	}
	img.mu.RLock()
	w := Source{Store: n.s.store.Dir(), Checkpoint: img.name, ID: img.id}
	img.mu.RUnlock()
	if w.ID == "" {
		return 0, syscall.ENODATA
	}
	b, err := json.Marshal(w)
	if err != nil || len(b) >= len(out) {
		return 0, syscall.ENAMETOOLONG
	}
	clear(out[copy(out, b):])
	return 0, 0
}

// SourceOf asks whose images a directory holds; false when it is not the image directory of a sealed checkpoint in a
// mount of ours.
func SourceOf(dir string) (Source, bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return Source{}, false, err
	}
	defer f.Close()
	var out [sourceSize]byte
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), iocSource, uintptr(unsafe.Pointer(&out)))
	switch errno {
	case 0:
	case unix.ENOTTY, unix.EINVAL, unix.ENODATA, unix.ENOSYS, unix.EOPNOTSUPP:
		return Source{}, false, nil
	default:
		return Source{}, false, &os.PathError{Op: "ask whose images are in", Path: dir, Err: errno}
	}
	b, _, ok := bytes.Cut(out[:], []byte{0})
	var w Source
	if err := json.Unmarshal(b, &w); !ok || err != nil || w.Store == "" || w.ID == "" {
		return Source{}, false, fmt.Errorf(
			"%s: %w", dir, errors.Join(errors.New("its file system gives a strange answer"), err),
		)
	}
	return w, true, nil
}
