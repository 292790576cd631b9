// Package vram moves the contents of buffer objects (BOs): from image files
// into VRAM for a restore, out of VRAM into image files for a dump, and back
// once more to verify.
//
// # Filling
//
// A plan names the render nodes to work on and the BOs, each as a dma-buf with
// the place of its contents in an image file. All BOs of all processes and
// GPUs, small neighbours together, are files of one prefetch.Queue: the profile's ranges first, then the
// rest, GPUs taking turns run by run. The queue's buffers are slots of one
// staging area, registered with a GPU when they are first used for it, so the
// queue's workers read and decode straight into memory that the GPUs fetch from:
//
//	worker:  take a slot → read a run into it → submit its copy packets
//	waiter:  one for each ring: wait for the oldest submission → free the slot
//
// Slots are all there is of staging memory: a worker that finds none waits
// until a copy has ended. Runs of zeros, known from the manifest or from the
// holes of a file, are constant fill packets and need no slot.
//
// # Failing
//
// The first error ends the work: nothing further is read or submitted, what is
// in flight is waited for, and the error, an *Error, names process, GPU and
// BO. A BO is never reported filled when any of its bytes was not read, or its
// packets not completed.
//
// # Lock order
//
// staging.mu and work.mu are leaves.
package vram
