// Package cuda moves the GPU state of processes into their own memory and back,
// so that CRIU can dump and restore them: the CUDA driver's checkpoint interface
// (570 and newer), for whole process trees and any number of GPUs.
//
// # Why a second program
//
// The driver is a shared library that is found when the program runs, and
// gpucr-fs is linked statically. So a program of its own, gpucr-cuda, loads it;
// a Client starts that program once and speaks with it over its standard
// streams, a JSON object a line, requests answered in any order. Without
// NVIDIA's driver it is never started.
//
// # States
//
//	Running --lock--> Locked --checkpoint--> Checkpointed
//	Running <--unlock-- Locked <--restore-- Checkpointed
//
// Lock waits for submitted work and holds further calls into the driver back.
// Checkpoint copies VRAM into the process and gives the GPU free: from here on
// the process is an ordinary one. Restore takes a GPU, the same or, with driver
// 580 and newer, the one a Pair names, and copies back.
//
// # A tree
//
// Suspend locks all processes before it checkpoints the first, all at once:
// they may wait for each other's work. Whatever goes wrong, each process is
// brought back to Running. The program that holds the driver does so too, by
// itself, when the one that asked for the suspension is killed: it sees its
// standard input end.
//
// From Checkpoint to the end of Restore a process is stopped, and a restored one runs traced: package freeze tells why
// and how.
package cuda
