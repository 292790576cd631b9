// Package abi holds the structures, request numbers and flags of the AMD KFD
// (/dev/kfd) and amdgpu DRM (/dev/dri/renderD*) interfaces that a dump or a
// restore uses, those a HIP runtime issues while it starts, and the private
// blob that the KFD hands to CRIU. It is data only: nothing here opens a
// device.
//
// # Layout rules
//
// Every structure is made of fixed-size integers with its padding written out,
// so its Go layout, its encoding/binary image and its C layout are one and the
// same on every 64-bit little-endian machine. A field's `c` tag names the C
// member it mirrors; a field without a tag is padding, or was padding in the
// first header that had the structure. The tests compile a C program against
// the machine's own linux/kfd_ioctl.h and amdgpu_drm.h and compare sizes,
// offsets, request numbers and flags.
//
// Unions are split into an In and an Out structure. The In structure always
// has the size of the union.
//
// # Sizes that vary
//
// The KFD and the DRM core take the size from the request itself: they copy
// that many bytes in, treat what is missing as zero, and copy that many bytes
// out. A caller built against a newer or older header therefore differs from
// the constants here in the size bits alone. Match requests with
// [Request.Same], and move arguments with [Decode] and [Encode], which follow
// the same rule.
//
// # Sources
//
// include/uapi/linux/kfd_ioctl.h, include/uapi/drm/drm.h and
// include/uapi/drm/amdgpu_drm.h of Linux 6.1 unless a newer one is named;
// drivers/gpu/drm/amd/amdkfd/kfd_priv.h of Linux 6.12 for what the KFD keeps
// to itself (mmap offsets and the private data of a checkpoint).
package abi
