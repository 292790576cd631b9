// Package crash kills the real program at random instants and damages what it left, and holds it to its promises: a
// sealed checkpoint is byte for byte what was put in, or reading it is an error that names it; everything else is
// listed as incomplete and goes with gc.
//
// -crash.n sets how many times each test strikes (make crash: 200), -crash.seed repeats a run: the same choices, though
// not the same timing.
package crash
