// Package imagepb has the protobuf messages of the images that CRIU's amdgpu plugin writes, generated from its .proto
// file; package image encodes and decodes them.
package imagepb
