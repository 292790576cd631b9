// Package lifecycle is the life of a daemon: the process that keeps a store open for its mounts and restores.
//
// It opens the store, listens, mounts, and reports to its starter over a pipe. It serves until its last mount is gone,
// no restore is in progress and nobody holds it (package lifetime), or until its context ends. Then it unmounts what is
// left, waits for operations in flight, removes the socket and closes the store. If it is killed, it leaves a stale
// mount, which the next mount at that place detaches, and a stale socket, which the next daemon replaces: the process
// that holds the store's lock owns the name of the socket.
//
// Operations that clients ask for are those of package service, served by HTTP; what comes with descriptors is for
// package fill, on a socket of its own.
//
// # Successors
//
// A restore's memory comes from the daemon, while CRIU runs in the command. When the daemon is killed, the guardian
// of each restore starts a successor ([Succeed]). One of them opens the store and is the daemon; the others hand it
// the descriptors of their guardians and end.
//
// # Lock order
//
// LogFile.mu is held alone. Packages mounts, restores and lifetime have their own locks, in this order: a table, then
// what it keeps, then the lifetime.
package lifecycle
