package drm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// The kernel writes to the structures of kfd/abi as they are: their Go layout
// is the C layout. Where a request's argument is a union, the In structure has
// its size and the Out structure lies over it.

// Backoff between repetitions of a request.
const (
	minBackoff = 100 * time.Microsecond
	maxBackoff = 20 * time.Millisecond
)

// transient reports whether a request that failed so may succeed when it is
// repeated.
func transient(req abi.Request, errno unix.Errno) bool {
	switch errno {
	case unix.EINTR, unix.EAGAIN, unix.EBUSY:
		return true
	case unix.ENOMEM:
		// Other BOs have to be evicted first.
		return req == abi.AMDGPUIocCS
	}
	return false
}

// ioctl issues a request on a device, and again while it fails for a moment,
// for at most timeout.
func ioctl(ctx context.Context, fd int, req abi.Request, arg unsafe.Pointer, timeout time.Duration) error {
	var since time.Time
	pause := minBackoff
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if errno == 0 {
			return nil
		}
		err := fmt.Errorf("%v: %w", req, errno)
		if !transient(req, errno) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (last: %v)", context.Cause(ctx), err)
		}
		if errno == unix.EINTR {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		} else if time.Since(since) > timeout {
			return fmt.Errorf("%w, repeated for %v", err, timeout)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxBackoff)
	}
}

// do issues a request of this device that is expected to be quick.
func do[T any](d *Device, req abi.Request, arg *T) error {
	return ioctl(context.Background(), d.fd, req, unsafe.Pointer(arg), d.opts.Timeout)
}

// info asks for a piece of information about the device. A kernel that knows
// less of it leaves the rest zero.
func info[T any](d *Device, args abi.AMDGPUInfoArgs, out *T) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(out)
	args.ReturnPointer, args.ReturnSize = address(unsafe.Pointer(out)), uint32(unsafe.Sizeof(*out))
	return do(d, abi.AMDGPUIocInfo, &args)
}

// driver returns the driver's name and major version.
func (d *Device) driver() (string, int, error) {
	name := make([]byte, 32)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&name[0])
	args := abi.DRMVersionArgs{Name: address(unsafe.Pointer(&name[0])), NameLen: uint64(len(name))}
	if err := do(d, abi.DRMIocVersion, &args); err != nil {
		return "", 0, err
	}
	return string(name[:min(int(args.NameLen), len(name))]), int(args.Major), nil
}

func (d *Device) newContext() (uint32, error) {
	args := abi.AMDGPUCtxIn{Op: abi.AMDGPUCtxOpAlloc}
	if err := do(d, abi.AMDGPUIocCtx, &args); err != nil {
		return 0, err
	}
	return (*abi.AMDGPUCtxAllocOut)(unsafe.Pointer(&args)).CtxID, nil
}

// hung reports whether the context was lost to a reset.
func (d *Device) hung() (bool, error) {
	args := abi.AMDGPUCtxIn{Op: abi.AMDGPUCtxOpQueryState2, CtxID: d.ctx}
	if err := do(d, abi.AMDGPUIocCtx, &args); err != nil {
		return false, err
	}
	return (*abi.AMDGPUCtxStateOut)(unsafe.Pointer(&args)).Flags&ctxLost != 0, nil
}

// ctxLost are AMDGPU_CTX_QUERY2_FLAGS_RESET, _VRAMLOST and _GUILTY.
const ctxLost = 1<<0 | 1<<1 | 1<<2

func (d *Device) createBO(size, domain uint64) (uint32, error) {
	args := abi.AMDGPUGEMCreateIn{BOSize: size, Alignment: abi.AMDGPUPageSize, Domains: domain}
	if err := do(d, abi.AMDGPUIocGEMCreate, &args); err != nil {
		return 0, err
	}
	return (*abi.AMDGPUGEMCreateOut)(unsafe.Pointer(&args)).Handle, nil
}

func (d *Device) mmapBO(handle uint32, size uint64) ([]byte, error) {
	args := abi.AMDGPUGEMMmapIn{Handle: handle}
	if err := do(d, abi.AMDGPUIocGEMMmap, &args); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("buffer object lies outside what the cpu can see (a small bar): %w", err)
		}
		return nil, err
	}
	off := (*abi.AMDGPUGEMMmapOut)(unsafe.Pointer(&args)).AddrPtr
	if size > 1<<62 {
		return nil, fmt.Errorf("mmap of %d bytes", size)
	}
	mem, err := unix.Mmap(d.fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes of a buffer object: %w", size, err)
	}
	return mem, nil
}

func (d *Device) userptr(mem []byte) (uint32, error) {
	args := abi.AMDGPUGEMUserptrArgs{Addr: address(unsafe.Pointer(unsafe.SliceData(mem))), Size: uint64(len(mem)),
		Flags: abi.AMDGPUUserptrAnononly | abi.AMDGPUUserptrRegister | abi.AMDGPUUserptrValidate}
	err := do(d, abi.AMDGPUIocGEMUserptr, &args)
	return args.Handle, err
}

func address(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

// maxListed bounds the BOs of one submission: as many as an IB has copies for.
const maxListed = 128

// csArgs is a submission as the kernel reads it. It lives on the heap, where
// it stays in place; its pointers are into itself.
type csArgs struct {
	cs      abi.AMDGPUCSIn
	ptrs    [2]uint64
	chunks  [2]abi.AMDGPUCSChunk
	list    abi.AMDGPUBOListIn
	ib      abi.AMDGPUCSChunkIB
	entries [maxListed]abi.AMDGPUBOListEntry
}

// submit makes a submission of an IB and returns its number on the ring.
// Preconditions: r.mu is held, handles are at most maxListed.
func (r *ring) submit(ctx context.Context, va uint64, bytes uint32, handles []uint32) (uint64, error) {
	a, d := r.args, r.dev
	for i, h := range handles {
		a.entries[i] = abi.AMDGPUBOListEntry{BOHandle: h}
	}
	a.list = abi.AMDGPUBOListIn{Operation: ^uint32(0), ListHandle: ^uint32(0), BONumber: uint32(len(handles)),
		BOInfoSize: uint32(unsafe.Sizeof(a.entries[0])), BOInfoPtr: address(unsafe.Pointer(&a.entries))}
	a.ib = abi.AMDGPUCSChunkIB{VAStart: va, IBBytes: bytes, IPType: abi.AMDGPUHWIPDMA, Ring: r.number}
	a.chunks = [2]abi.AMDGPUCSChunk{
		{ChunkID: abi.AMDGPUChunkBOHandles, LengthDW: uint32(unsafe.Sizeof(a.list) / 4),
			ChunkData: address(unsafe.Pointer(&a.list))},
		{ChunkID: abi.AMDGPUChunkIB, LengthDW: uint32(unsafe.Sizeof(a.ib) / 4),
			ChunkData: address(unsafe.Pointer(&a.ib))},
	}
	a.ptrs = [2]uint64{address(unsafe.Pointer(&a.chunks[0])), address(unsafe.Pointer(&a.chunks[1]))}
	a.cs = abi.AMDGPUCSIn{CtxID: d.ctx, NumChunks: 2, Chunks: address(unsafe.Pointer(&a.ptrs))}
	err := ioctl(ctx, d.fd, abi.AMDGPUIocCS, unsafe.Pointer(&a.cs), d.opts.Timeout)
	runtime.KeepAlive(a)
	if err != nil {
		return 0, err
	}
	return (*abi.AMDGPUCSOut)(unsafe.Pointer(&a.cs)).Handle, nil
}

// waitSlice is how long one wait for a fence lasts, so that a canceled context
// is noticed.
const waitSlice = 200 * time.Millisecond

// waitFor waits for a submission.
func (r *ring) waitFor(ctx context.Context, seq uint64) error {
	for {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return err
		}
		args := abi.AMDGPUWaitCSIn{Handle: seq, Timeout: uint64(ts.Nano() + waitSlice.Nanoseconds()),
			IPType: abi.AMDGPUHWIPDMA, Ring: r.number, CtxID: r.dev.ctx}
		if err := ioctl(ctx, r.dev.fd, abi.AMDGPUIocWaitCS, unsafe.Pointer(&args), r.dev.opts.Timeout); err != nil {
			return err
		}
		if (*abi.AMDGPUWaitCSOut)(unsafe.Pointer(&args)).Status == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
