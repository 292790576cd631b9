// Package wire is what a command and a daemon say to each other, and the sockets over which they say it.
//
// # Operations
//
// store/daemon.sock speaks HTTP/1.1: POST /v1/ops/NAME. The body is one line of JSON, the request, followed by the
// raw input stream of operations that take one. The answer is a sequence of frames, each a line of JSON: progress, a
// piece of output ({"data":n} and n raw bytes), and at last a result or an error. POST /v1/hold is answered at once
// and keeps the daemon until the connection ends.
//
// # Descriptors
//
// store/fill.sock takes what comes with descriptors: packets, each one JSON object and the descriptors that it speaks
// of. The packages that use it define the objects.
//
// Where the store cannot be written, the sockets are in a folder of their own below /run/gpucr-fs (Away).
//
// Both sockets have mode 0600 in a folder of mode 0700, and who asks must be root or the daemon's own user.
//
// # Lock order
//
// There is one lock, FrameWriter.mu. It is held while a frame is written, so that frames stay whole.
package wire
