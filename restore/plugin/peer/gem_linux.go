package peer

import (
	"fmt"
	"os"
	"unsafe"

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
