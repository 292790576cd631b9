// Package kfd answers whether the GPU side of a checkpoint can be restored on a
// host: it joins what the images say (kfd/image) with what the host has
// (kfd/topology and the driver), GPU by GPU.
//
// Every process of a checkpoint brings the topology it was dumped on and is
// mapped on its own, as CRIU's amdgpu plugin does it. What the processes need
// together, VRAM above all, is added up over their mappings.
package kfd
