// Package mounts keeps the mounts that a daemon serves.
//
// A mount outlives the request that asked for it: it holds the daemon until it is gone, whoever unmounts it. Private
// mounts, of one restore or dump, are attached nowhere; the operation that made one also removes it.
//
// # Lock order
//
// Table.mu, then the lock of package lifetime. Neither is held while mounting, unmounting or asking a mount.
package mounts
