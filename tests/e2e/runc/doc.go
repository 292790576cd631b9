// Package runc checkpoints a container of Debian's runc into a mount of a store, and restores it from there with its
// memory on demand.
package runc
