// Package client is a command's way to a store: through the daemon that has it open, or by opening it here.
//
// [Connect] looks for a daemon first. Every client holds the daemon for as long as its session lasts: it says so
// first thing, on a connection it keeps, and is told whether the daemon stays. A daemon that has decided to leave
// refuses, and the client looks again: it finds the store free, or another daemon. So no request meets a daemon that
// leaves. Each call has a connection of its own; a client that goes away cancels its operation.
//
// [RestoreFrom], [DumpInto] and [ServeLazyPages] converse with the daemon while CRIU runs in the command (package
// talk). When the daemon is killed before the processes run, a restore is begun again, with a new one.
//
// There are no locks. The reader of the connection that holds the daemon is the only other goroutine of a session.
package client
