// Package fill has the daemon put the contents of GPUs' buffer objects in place, straight from the store.
//
// The helper of a restore asks by [Through]: it hands over render nodes and dma-bufs, and waits. [Server] is the
// daemon's end. The connection is the fill: when it breaks the daemon stops, and when the daemon dies the helper
// begins anew with its successor. The answer comes when nothing of the memory is held here any more.
//
// # Lock order
//
// There are no locks. Each connection is served by one goroutine, which another one tells of the client's end.
package fill
