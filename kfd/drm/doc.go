// Package drm moves bytes between memory and the buffer objects (BOs) of an
// AMD GPU through its render node, without libdrm.
//
// # How it works
//
// A [Device] is one open of a render node: an address space of its own on the
// GPU, a context, and a ring of slots for indirect buffers (IBs). BOs come in
// as dma-bufs (PRIME), memory of this process as userptr BOs; both are mapped
// whole at addresses that the Device chooses. [Device.Submit] turns copies and
// fills into SDMA packets of the GPU's family, writes them to a free IB slot
// and submits them with the list of BOs they touch. Every submission has a
// [Fence]; a slot is free again when its fence has been waited for.
//
// Where SDMA does not serve, because acceleration is off or the family is not
// known, the same calls work on mappings of the BOs by the CPU (a large BAR):
// fine for writing, slow for reading.
//
// # Failing
//
// Requests that fail for a moment (EBUSY, EAGAIN, EINTR, and ENOMEM of a
// submission) are repeated for up to [Options].Timeout. A copy beyond a
// buffer's end is refused before anything is submitted. A submission that the
// GPU could not carry out is an error of its fence, and the Device takes no
// more afterwards.
//
// # Lock order
//
// Device.mu is a leaf; no ioctl is made under it except those of submissions
// to one ring, which ring.mu keeps in order.
package drm
