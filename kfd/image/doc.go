// Package image reads and writes the images of CRIU's amdgpu plugin and knows
// where in them the contents of every buffer object (BO) lie.
//
// # The files of a checkpoint
//
//	amdgpu-kfd-ID.img                  one per open /dev/kfd: devices, BOs, private data
//	amdgpu-pages-ID-GPU.img            one per GPU of it: contents of its VRAM and GTT BOs
//	amdgpu-renderD-ID.img              one per open render node: the GPU, and after 4.2 its BOs
//	amdgpu-drm-pages-ID-MINOR-BO.img   one per BO of a render node or dma-buf: its contents (after 4.2)
//	amdgpu-dmabuf_ID.img               one per open dma-buf: its GEM handle (after 4.2)
//
// Each begins with the size of its payload, 8 bytes in the byte order of the
// machine (little-endian wherever the driver runs). The plugin opens files
// without truncating them, so a second dump into one directory may leave older
// bytes behind the payload: they are ignored, as the plugin does. The size in a
// drm-pages file is uninitialised memory and is ignored as well.
//
// # The place of a BO
//
// A pages file holds, in the order of the kfd image and without padding, the
// BOs of that GPU whose type is VRAM or GTT. The first lies at offset 8, every
// further one where its predecessor ends. All other BOs have no contents here:
// those of a userptr are pages of the process, doorbells and MMIO have none.
// [ProcessLayout] and [RenderNodeLayout] compute this in 64 bits throughout
// and refuse images whose sums overflow.
//
// # Schemas
//
// CRIU 4.2 knows neither GEM handles nor the contents of render nodes; later
// versions require both. Decoding accepts either and says which it was;
// encoding writes either. An image decoded and encoded in its own schema is
// byte-identical, fields unknown to us included.
//
// Fields from 1000 on are ours; CRIU's plugin passes over them. They tell which BOs are
// one, and with them the objects of render nodes are in images of either schema.
package image

//go:generate sh -c "cd ../.. && scripts/proto.sh"
