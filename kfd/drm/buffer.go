package drm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Buffer is memory that a Device copies from and to.
type Buffer struct {
	dev    *Device
	handle uint32
	va     uint64 // 0: not mapped to the GPU
	size   uint64
	mem    []byte // what the CPU sees of it, if that is needed
	mapped bool   // mem is a mapping to undo
	// imported handles may be shared with other buffers.
	imported bool
}

// Size returns the buffer's size in bytes.
func (b *Buffer) Size() uint64 { return b.size }

func pages(n uint64) uint64 { return (n + abi.AMDGPUPageSize - 1) &^ (abi.AMDGPUPageSize - 1) }

// vaRange is a range of addresses: [next, end).
type vaRange struct{ next, end uint64 }

// reserve returns an address for size bytes. Addresses are not used twice. Small buffers lie close together, with a
// page between them: the driver makes a page table for every 2 MiB of addresses that anything is mapped in
// (amdgpu_vm_ptes_update), which takes an allocation and a submission that clears it.
func (d *Device) reserve(size uint64) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := pages(size) + abi.AMDGPUPageSize
	if n > vaAlign/2 || n < size {
		return d.reserveAligned(size)
	}
	if n > d.small.end-d.small.next {
		va, err := d.reserveAligned(vaAlign)
		if err != nil {
			return 0, err
		}
		d.small = vaRange{va, va + vaAlign}
	}
	va := d.small.next
	d.small.next += n
	return va, nil
}

// reserveAligned is reserve for what may lie in large pages. Preconditions: d.mu is held.
func (d *Device) reserveAligned(size uint64) (uint64, error) {
	step := (pages(size) + 2*vaAlign - 1) &^ (vaAlign - 1) // a hole after each
	if step < size || d.nextVA > d.endVA || step > d.endVA-d.nextVA {
		return 0, fmt.Errorf("no room for %d bytes in the gpu's address space", size)
	}
	va := d.nextVA
	d.nextVA += step
	return va, nil
}

// mapGPU maps a buffer whole.
func (b *Buffer) mapGPU() error {
	va, err := b.dev.reserve(b.size)
	if err != nil {
		return err
	}
	// Page tables are written by the first submission that lists the buffer (amdgpu_cs_vm_handling), for all that it
	// lists at once, and not by this request.
	args := abi.AMDGPUGEMVAArgs{Handle: b.handle, Operation: abi.AMDGPUVAOpMap,
		Flags:     abi.AMDGPUVMPageReadable | abi.AMDGPUVMPageWriteable | abi.AMDGPUVMDelayUpdate,
		VAAddress: va, MapSize: pages(b.size)}
	if err := do(b.dev, abi.AMDGPUIocGEMVA, &args); err != nil {
		return fmt.Errorf("map %d bytes at %#x: %w", b.size, va, err)
	}
	b.va = va
	return nil
}

// mapCPU maps a buffer into this process, through the BAR if it is VRAM.
func (b *Buffer) mapCPU() error {
	mem, err := b.dev.mmapBO(b.handle, pages(b.size))
	if err != nil {
		return err
	}
	b.mem, b.mapped = mem, true
	return nil
}

// opened keeps a buffer for Device.Close.
func (b *Buffer) opened() *Buffer {
	b.dev.mu.Lock()
	defer b.dev.mu.Unlock()
	b.dev.buffers[b] = struct{}{}
	return b
}

// allocate makes system memory that both sides see.
func (d *Device) allocate(size uint64) (*Buffer, error) {
	h, err := d.createBO(size, abi.AMDGPUDomainGTT)
	if err != nil {
		return nil, err
	}
	b := &Buffer{dev: d, handle: h, size: size}
	if err = b.mapCPU(); err == nil {
		err = b.mapGPU()
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b.opened(), nil
}

// Import makes the first size bytes of a dma-buf accessible.
func (d *Device) Import(dmabuf *os.File, size uint64) (*Buffer, error) {
	b := &Buffer{dev: d, size: size, imported: true}
	raw, err := dmabuf.SyscallConn()
	if err != nil {
		return nil, err
	}
	var ierr error
	err = raw.Control(func(fd uintptr) { ierr = b.importFD(int(fd)) })
	if err := errors.Join(err, ierr); err != nil {
		return nil, err
	}
	if d.kind == SDMA {
		// The driver maps no more than there is (amdgpu_vm_verify_parameters): thousands of BOs save a call each.
		if err = b.mapGPU(); err != nil {
			err = cmp.Or(b.fits(raw), err)
		}
	} else if err = b.fits(raw); err == nil {
		err = b.mapCPU()
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b.opened(), nil
}

// fits reports whether the dma-buf that b was imported from has its size.
func (b *Buffer) fits(raw syscall.RawConn) error {
	var has int64
	var err error
	cerr := raw.Control(func(fd uintptr) { has, err = unix.Seek(int(fd), 0, unix.SEEK_END) })
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("size of dma-buf: %w", err)
	}
	if b.size > uint64(has) {
		return fmt.Errorf("dma-buf has %d bytes, %d are expected", has, b.size)
	}
	return nil
}

func (b *Buffer) importFD(fd int) error {
	if b.size == 0 {
		return errors.New("import of no bytes of a dma-buf")
	}
	// A BO that was imported before has the same handle, which the kernel
	// does not count. So nobody may give a handle up between the import and its count.
	d := b.dev
	d.importing.RLock()
	defer d.importing.RUnlock()
	args := abi.DRMPrimeArgs{FD: int32(fd)}
	if err := do(d, abi.DRMIocPrimeFDToHandle, &args); err != nil {
		return fmt.Errorf("import dma-buf: %w", err)
	}
	b.handle = args.Handle
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles[b.handle]++
	return nil
}

// Register makes memory of this process accessible: whole pages outside the Go
// heap. It must stay until the Buffer or the Device is closed.
func (d *Device) Register(mem []byte) (*Buffer, error) {
	if len(mem) == 0 || len(mem)%abi.AMDGPUPageSize != 0 {
		return nil, fmt.Errorf("register %d bytes: not whole pages", len(mem))
	}
	b := &Buffer{dev: d, size: uint64(len(mem)), mem: mem}
	if d.kind != SDMA {
		return b.opened(), nil
	}
	var err error
	if b.handle, err = d.userptr(mem); err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(mem), err)
	}
	if err := b.mapGPU(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b.opened(), nil
}

// Close ends the use of a buffer. Submissions that touch it must have been
// waited for.
func (b *Buffer) Close() error {
	d := b.dev
	d.mu.Lock()
	delete(d.buffers, b)
	d.mu.Unlock()
	errs := []error{b.unmapCPU()}
	if b.handle != 0 {
		errs = append(errs, b.drop())
		b.handle, b.va = 0, 0
	}
	return errors.Join(errs...)
}

// unmapCPU ends what this process sees of a buffer.
func (b *Buffer) unmapCPU() (err error) {
	if b.mapped {
		err = os.NewSyscallError("munmap", unix.Munmap(b.mem))
	}
	b.mem, b.mapped = nil, false
	return err
}

// drop gives up the handle, and with it the buffer's address. As long as others
// use the handle only the address goes.
func (b *Buffer) drop() error {
	d := b.dev
	if b.imported {
		d.importing.Lock()
		defer d.importing.Unlock()
		if d.unused(b.handle) > 0 {
			return b.unmapGPU()
		}
	}
	return do(d, abi.DRMIocGEMClose, &abi.DRMGEMCloseArgs{Handle: b.handle})
}

// unused counts one user less of a handle, and returns how many are left.
func (d *Device) unused(handle uint32) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles[handle]--
	left := d.handles[handle]
	if left == 0 {
		delete(d.handles, handle)
	}
	return left
}

func (b *Buffer) unmapGPU() error {
	if b.va == 0 {
		return nil
	}
	args := abi.AMDGPUGEMVAArgs{Handle: b.handle, Operation: abi.AMDGPUVAOpUnmap,
		Flags:     abi.AMDGPUVMPageReadable | abi.AMDGPUVMPageWriteable,
		VAAddress: b.va, MapSize: pages(b.size)}
	return do(b.dev, abi.AMDGPUIocGEMVA, &args)
}
