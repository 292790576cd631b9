// Package fill has the daemon put the contents of GPUs' buffer objects in place, straight from the store.
//
// The restore server, a thread in CRIU, has made what processes wait for: the helper beside it announces the fill with
// the render nodes ([Images.Announce]), the server sends the dma-bufs over the same connection, with packets that the
// helper has written, and is answered by messages of the plugin. What may follow a process the helper asks for itself
// ([Images.Fill]). [Server] is the daemon's end. The connection is the fill: when it breaks the daemon stops, and when
// the daemon dies it begins anew with its successor. The answer comes when nothing of the memory is held here any more.
//
// # Lock order
//
// There are no locks. Each connection is served by one goroutine, which another one tells of the client's end.
package fill
