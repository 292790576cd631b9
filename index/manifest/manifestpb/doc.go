// Package manifestpb has the protobuf messages of a checkpoint's records, generated from manifest.proto; package
// manifest encodes and decodes them.
package manifestpb
