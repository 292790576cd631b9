// Package service has the operations on a store, each written once and run wherever the store is open.
//
// One process at a time may hold a store. While something is mounted, that process is the daemon; every other command
// then works through its socket. So an operation is a function from a request to a result over an [Env], entered in
// one table by define, and run by [Op.Do] in one of two ways: directly, on a store the command opened for itself, or
// by name, sent to the daemon. Callers cannot tell the difference:
//
//	s, err := client.Connect(ctx, dir, options)
//	res, err := service.List.Do(ctx, s, service.ListRequest{}, wire.Streams{})
//
// Operations on mounts and restores need the daemon's [Parts] and say so where there are none.
//
// # Lock order
//
// logLines.mu is held while a line is written to the caller. There are no other locks: those of what is operated on
// are taken and given back within one call.
package service
