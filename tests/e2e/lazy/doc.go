// Package lazy restores real processes with real CRIU from our lazy-pages
// server.
package lazy
