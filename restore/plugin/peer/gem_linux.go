package peer

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/restore/server"
)

// gemHandles puts into the images of BOs what CRIU after 4.2 keeps of them: a
// handle on an open of their render node. BOs of one handle and render node are
// one, across processes: the opens last for the whole dump.
func (d *dump) gemHandles(msg *imagepb.Process, plan server.Plan) error {
	for _, b := range msg.Bos {
		b.Handle = proto.Uint32(abi.DRMInvalidHandle)
	}
	for _, bo := range plan.BOs {
		name := plan.Nodes[bo.Node].Name
		node := d.nodes[name]
		if node == nil {
			var err error
			if node, err = os.OpenFile("/dev/dri/"+name, os.O_RDWR, 0); err != nil {
				return err
			}
			d.nodes[name] = node
		}
		args := abi.DRMPrimeArgs{FD: int32(bo.Dmabuf.Fd())}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, node.Fd(), uintptr(abi.DRMIocPrimeFDToHandle),
			uintptr(unsafe.Pointer(&args))); errno != 0 {
			return fmt.Errorf("%s: handle of buffer object %d: %v: %w", name, bo.Index, abi.DRMIocPrimeFDToHandle,
				errno)
		}
		msg.Bos[bo.Index].Handle = proto.Uint32(args.Handle)
	}
	return nil
}

// noObjects refuses a render node that has buffer objects of its own: made on it, or
// imported into it. The driver's CHECKPOINT does not tell of them, and the process
// would fault when it came to them. Those of the KFD have no handle there.
func noObjects(node *os.File, minor uint32) error {
	list, err := objects(node)
	if err != nil {
		return fmt.Errorf("render node renderD%d: %w", minor, err)
	}
	if len(list) == 0 {
		return nil
	}
	var text []string
	for _, o := range list[:min(len(list), shownObjects)] {
		made := "made on it"
		if o.Flags&abi.AMDGPUGEMListIsImport != 0 {
			made = "imported"
		}
		text = append(text, fmt.Sprintf("handle %d, %s, %s", o.GEMHandle, humanize.IBytes(o.Size), made))
	}
	if n := len(list) - shownObjects; n > 0 {
		text = append(text, fmt.Sprintf("%d more", n))
	}
	return fmt.Errorf("render node renderD%d has buffer objects that are not the KFD's, and cannot be restored: %s",
		minor, strings.Join(text, "; "))
}

// shownObjects is how many objects an error names.
const shownObjects = 4

// probedHandles is how many handles are tried where the driver has no list: it gives
// the least that is free.
const probedHandles = 4096

// objects lists the handles of a render node.
func objects(node *os.File) ([]abi.AMDGPUGEMListHandlesEntry, error) {
	request := func(r abi.Request, args unsafe.Pointer) unix.Errno {
		for late := time.Now().Add(busyTime); ; time.Sleep(time.Millisecond) {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, node.Fd(), uintptr(r), uintptr(args))
			if errno != unix.EINTR && errno != unix.EAGAIN || time.Now().After(late) {
				return errno
			}
		}
	}
	entries := make([]abi.AMDGPUGEMListHandlesEntry, 16)
	for {
		args := abi.AMDGPUGEMListHandlesArgs{Entries: uint64(uintptr(unsafe.Pointer(&entries[0]))),
			NumEntries: uint32(len(entries))}
		errno := request(abi.AMDGPUIocGEMListHandles, unsafe.Pointer(&args))
		runtime.KeepAlive(entries)
		switch {
		case errno == unix.EINVAL || errno == unix.ENOTTY: // before Linux 6.18
			entries = entries[:0]
			for h := range uint32(probedHandles) {
				var info abi.AMDGPUGEMCreateIn
				op := abi.AMDGPUGEMOpArgs{Handle: h + 1, Op: abi.AMDGPUGEMOpGetCreateInfo,
					Value: uint64(uintptr(unsafe.Pointer(&info)))}
				if errno := request(abi.AMDGPUIocGEMOp, unsafe.Pointer(&op)); errno == 0 {
					entries = append(entries, abi.AMDGPUGEMListHandlesEntry{GEMHandle: h + 1, Size: info.BOSize})
				} else if errno != unix.ENOENT {
					return nil, fmt.Errorf("handle %d: %v: %w", h+1, abi.AMDGPUIocGEMOp, errno)
				}
				runtime.KeepAlive(&info)
			}
			return entries, nil
		case errno != 0:
			return nil, fmt.Errorf("%v: %w", abi.AMDGPUIocGEMListHandles, errno)
		case int(args.NumEntries) <= len(entries):
			return entries[:args.NumEntries], nil
		}
		entries = make([]abi.AMDGPUGEMListHandlesEntry, args.NumEntries)
	}
}
