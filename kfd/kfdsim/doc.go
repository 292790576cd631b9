// Package kfdsim simulates /dev/kfd and the render nodes of AMD GPUs, closely
// enough that an application, CRIU and a CRIU plugin written for the real
// driver run on it unchanged, on a machine without a GPU. README.md in this
// folder is its manual: what it models, what it does not, how it is started.
//
// # How it works
//
// The device nodes are files of a FUSE mount. An ioctl arrives with the bytes
// its request number announces; pointers inside are followed in the caller
// with process_vm_readv and process_vm_writev, file descriptors with
// pidfd_getfd. Mappings are real: every render node has one sparse memfd behind
// it through FUSE passthrough, a buffer object (BO) is a range of it, and the
// file offset of the range is what the driver hands out for mmap. The
// simulator maps the same range, so CPU writes of the application, packets of
// its queues and DMA see one memory.
//
// A queue is a goroutine that watches its doorbell, reads packets from the ring
// in the application's memory and carries them out on the BOs that its GPU
// address space (vm) maps. An SDMA engine is a goroutine that carries out
// submitted indirect buffers, no faster than the link's rate. Whatever touches
// an address that is not mapped, not writable or beyond a BO is a fault, never
// a silent success.
//
// # Lock order
//
//	kfdProcess.mu    one ioctl at a time for a process (kfd_process.mutex)
//	queue.running    held while a packet is carried out; eviction waits for it
//	Sim.mu           all objects: BOs, address spaces, handles, events, faults
//	arena.mu, link.mu, dmaStats.mu   leaves
//
// Memory of the application is never touched under Sim.mu: a page fault there
// may wait for somebody who needs the simulator.
package kfdsim
