//go:build race

package index

// raceFactor is how many times the memory of a process grows under the race detector, by its own manual.
const raceFactor = 10
