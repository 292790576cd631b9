// Package soak puts many checkpoints through one daemon of the real program and holds it to what it took after the
// first.
package soak
