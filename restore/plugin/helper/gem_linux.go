package helper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// gemHandles puts into the images of BOs what tells which are one, and what CRIU after
// 4.2 keeps of them: a handle on an open of their render node. The opens last for the
// whole dump, and so do the dma-bufs, by whose inode numbers they are known.
func (d *dump) gemHandles(msg *imagepb.Process, plan vram.Plan) error {
	for _, b := range msg.Bos {
		b.Handle, b.Object = proto.Uint32(abi.DRMInvalidHandle), proto.Uint64(0)
	}
	for _, bo := range plan.BOs {
		name := plan.Nodes[bo.Node].Name
		node, err := d.ownNode(name)
		if err != nil {
			return err
		}
		handle, err := gemImport(node, bo.Dmabuf)
		if err != nil {
			return fmt.Errorf("%s: handle of buffer object %d: %w", name, bo.Index, err)
		}
		object, err := inode(bo.Dmabuf)
		if err != nil {
			return err
		}
		d.known[object] = handle
		msg.Bos[bo.Index].Handle, msg.Bos[bo.Index].Object = proto.Uint32(handle), proto.Uint64(object)
	}
	return nil
}

// ownNode is this dump's own open of a render node.
func (d *dump) ownNode(name string) (*os.File, error) {
	if node := d.nodes[name]; node != nil {
		return node, nil
	}
	node, err := os.OpenFile("/dev/dri/"+name, os.O_RDWR, 0)
	if err == nil {
		d.nodes[name] = node
	}
	return node, err
}

// inode is a file's inode number.
func inode(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return st.Ino, nil
}

// probedHandles is how many handles are tried where the driver has no list: it gives
// the least that is free.
const probedHandles = 4096

// gemIoctl issues a request on a render node.
func gemIoctl(node *os.File, r abi.Request, args unsafe.Pointer) error {
	for late := time.Now().Add(busyTime); ; time.Sleep(time.Millisecond) {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, node.Fd(), uintptr(r), uintptr(args))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR && errno != unix.EAGAIN || time.Now().After(late) {
			return fmt.Errorf("%v: %w", r, errno)
		}
	}
}

// handles lists the handles of a render node. told is false where the driver has no
// list, and nothing else that a dump needs to know of them (before Linux 6.18).
func handles(node *os.File) (list []abi.AMDGPUGEMListHandlesEntry, told bool, err error) {
	entries := make([]abi.AMDGPUGEMListHandlesEntry, 16)
	for {
		args := abi.AMDGPUGEMListHandlesArgs{Entries: uint64(uintptr(unsafe.Pointer(&entries[0]))),
			NumEntries: uint32(len(entries))}
		err := gemIoctl(node, abi.AMDGPUIocGEMListHandles, unsafe.Pointer(&args))
		runtime.KeepAlive(entries)
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY):
			list, err = probe(node)
			return list, false, err
		case err != nil:
			return nil, false, err
		case int(args.NumEntries) <= len(entries):
			return entries[:args.NumEntries], true, nil
		}
		entries = make([]abi.AMDGPUGEMListHandlesEntry, args.NumEntries)
	}
}

// probe finds the handles of a render node by trying them.
func probe(node *os.File) (list []abi.AMDGPUGEMListHandlesEntry, err error) {
	for h := range uint32(probedHandles) {
		var info abi.AMDGPUGEMCreateIn
		op := abi.AMDGPUGEMOpArgs{Handle: h + 1, Op: abi.AMDGPUGEMOpGetCreateInfo,
			Value: uint64(uintptr(unsafe.Pointer(&info)))}
		err := gemIoctl(node, abi.AMDGPUIocGEMOp, unsafe.Pointer(&op))
		runtime.KeepAlive(&info)
		if err == nil {
			list = append(list, abi.AMDGPUGEMListHandlesEntry{GEMHandle: h + 1, Size: info.BOSize})
		} else if !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("handle %d: %w", h+1, err)
		}
	}
	return list, nil
}

// mappings gives where an object lies in the address space of its render node.
func mappings(node *os.File, handle uint32) ([]abi.AMDGPUGEMVMEntry, error) {
	entries := make([]abi.AMDGPUGEMVMEntry, 8)
	for {
		args := abi.AMDGPUGEMOpMappingArgs{Handle: handle, Op: abi.AMDGPUGEMOpGetMappingInfo,
			Value: uint64(uintptr(unsafe.Pointer(&entries[0]))), NumEntries: uint32(len(entries))}
		err := gemIoctl(node, abi.AMDGPUIocGEMOpMapping, unsafe.Pointer(&args))
		runtime.KeepAlive(entries)
		if err != nil {
			return nil, err
		}
		if int(args.NumEntries) <= len(entries) {
			return entries[:args.NumEntries], nil
		}
		entries = make([]abi.AMDGPUGEMVMEntry, args.NumEntries)
	}
}

// gemOffset is an object's offset for mmap on its render node; 0 for one that no CPU
// may map.
func gemOffset(node *os.File, handle uint32) (uint64, error) {
	var args struct{ v [8]byte } // a union: AMDGPUGEMMmapIn, AMDGPUGEMMmapOut
	*(*abi.AMDGPUGEMMmapIn)(unsafe.Pointer(&args)) = abi.AMDGPUGEMMmapIn{Handle: handle}
	err := gemIoctl(node, abi.AMDGPUIocGEMMmap, unsafe.Pointer(&args))
	if errors.Is(err, unix.EPERM) {
		return 0, nil
	}
	return (*abi.AMDGPUGEMMmapOut)(unsafe.Pointer(&args)).AddrPtr, err
}

// gemCreate makes an object on a render node.
func gemCreate(node *os.File, in abi.AMDGPUGEMCreateIn) (handle uint32, err error) {
	args := in // a union: AMDGPUGEMCreateIn, AMDGPUGEMCreateOut
	err = gemIoctl(node, abi.AMDGPUIocGEMCreate, unsafe.Pointer(&args))
	return (*abi.AMDGPUGEMCreateOut)(unsafe.Pointer(&args)).Handle, err
}

// gemImport gives the object of a dma-buf a handle.
func gemImport(node, dmabuf *os.File) (handle uint32, err error) {
	args := abi.DRMPrimeArgs{FD: int32(dmabuf.Fd())}
	err = gemIoctl(node, abi.DRMIocPrimeFDToHandle, unsafe.Pointer(&args))
	return args.Handle, err
}

// gemRename gives an object another handle.
func gemRename(node *os.File, handle, to uint32) error {
	if handle == to {
		return nil
	}
	args := abi.DRMGEMChangeHandleArgs{Handle: handle, NewHandle: to}
	if err := gemIoctl(node, abi.DRMIocGEMChangeHandle, unsafe.Pointer(&args)); err != nil {
		return fmt.Errorf("handle %d cannot be called %d (hint: Linux has that from 6.18 on): %w", handle, to, err)
	}
	return nil
}

// gemClose gives a handle back.
func gemClose(node *os.File, handle uint32) error {
	args := abi.DRMGEMCloseArgs{Handle: handle}
	return gemIoctl(node, abi.DRMIocGEMClose, unsafe.Pointer(&args))
}

// gemMap maps a part of an object into the address space of its render node.
func gemMap(node *os.File, handle uint32, at abi.AMDGPUGEMVMEntry) error {
	args := abi.AMDGPUGEMVAArgs{Handle: handle, Operation: abi.AMDGPUVAOpMap, Flags: uint32(at.Flags),
		VAAddress: at.Addr, OffsetInBO: at.Offset, MapSize: at.Size}
	return gemIoctl(node, abi.AMDGPUIocGEMVA, unsafe.Pointer(&args))
}
