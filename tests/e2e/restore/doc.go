// Package restore dumps and restores real processes with the real program and a real CRIU, and kills and damages what
// it can on the way: a restored process checks every page it owns, and nothing is ever left behind.
//
// -torture.n sets how often each test strikes (make torture: 100), -torture.seed repeats the choices of a run.
package restore
