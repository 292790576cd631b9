// Package client is a command's way to a store: through the daemon that has it open, or by opening it here.
//
// [Connect] looks for a daemon first. Every client holds the daemon for as long as its session lasts. It asks for that
// first, on a connection that it keeps, and the daemon answers whether it stays. A daemon that has decided to leave
// refuses, and the client looks again: it finds the store free, or another daemon. So no request reaches a daemon that
// is leaving. Each call has a connection of its own; a client that goes away cancels its operation.
//
// [RestoreFrom], [DumpInto] and [ServeLazyPages] converse with the daemon while CRIU runs in the command (package
// talk). If the daemon is killed before the processes run, the restore is begun again with a new daemon.
//
// There are no locks. The reader of the connection that holds the daemon is the only other goroutine of a session.
package client
