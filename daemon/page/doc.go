// Package page is a page for a browser that shows one store: its checkpoints, what its bytes are used by, restores in
// progress, and what went wrong lately. It changes nothing in the store.
//
// The figures are those of du, ls, info and stats. Counting the bytes of a store goes through all manifests. The page
// does that in the background, one count at a time, only while somebody looks, only when checkpoints have come or gone,
// and for at most a tenth of the time. Until the first count is done it shows what is known without one.
//
// An answer is made in memory, and has a bound: the rows of a list, the tiles of the map and the details of a
// checkpoint that are shown are limited in number, and the answer tells how many there are in all.
//
// # Lock order
//
// Each lock of this package is held alone, and never while something is read from the store or written to a client.
package page
