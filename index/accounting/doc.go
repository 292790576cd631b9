// Package accounting tells what checkpoints and the whole store take: bytes that are zero, shared, or a
// checkpoint's own, and what they occupy on disk. It walks manifests, and reads no payload.
package accounting
