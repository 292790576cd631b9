// Package still keeps a process from running while its GPU is away, all but the threads that the driver needs.
//
// The driver's lock holds back calls that begin work. Others it lets through: driver 580.159 was seen to look at a
// channel's error notifier, by a thread of JAX that asks for errors from time to time, after the checkpoint had taken
// that memory down. The process is gone then.
//
// So such a process is stopped before its checkpoint, as SIGSTOP does it, and continued after its restore. In between
// CRIU dumps it, and takes the stop along: what it restores is stopped as well. While the driver takes a step, its
// threads run: [Run] traces them, lets them leave the stop, and back into it at the end.
//
// Whoever is killed at whatever moment, the process stays stopped: a tracer's end brings the threads that it traced back
// into the stop. Who survives has to continue it. A step that was begun then is done once they run again.
package still
