// Package web serves HTTP where an operator asks the daemon for it: the page and the metrics.
//
// An address is HOST:PORT or unix:PATH. Who may ask depends on it:
//
//   - A unix socket has mode 0600, and only root and the daemon's own user get through.
//   - On a loopback address everybody on the machine may ask. The Host header must name this machine: a name that
//     somebody else's DNS leads to 127.0.0.1 is refused, so that no page of the web can read along.
//   - Any other address needs a token, which a client sends as "Authorization: Bearer TOKEN", or a person types in once
//     for a cookie. With a token file, loopback needs it too.
//
// Where something is served already, a token file that a later mount or serve names for the same address counts from
// then on: its token replaces the one before, and is needed where none was.
//
// # Bounds
//
// A server has at most 64 connections, headers of at most 16 KiB, and a time limit on reading a request and on writing
// its answer. Handlers make an answer in memory before they write it: a client that reads slowly holds its connection
// and nothing else.
//
// # Lock order
//
// Slot.mu, then gate.open.
package web
