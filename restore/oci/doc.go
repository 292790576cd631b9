// Package oci understands how podman, containerd, CRI-O and docker call an OCI runtime, for gpucr-runc: a runtime that
// is runc in everything but checkpoint and restore, which go through a store.
//
// [Parse] reads a command line as runc and crun do. What it does not understand, and what is not for the store, is
// left to the runtime as it stands: [Call.Ours].
//
// The images of a checkpoint are in the store. In the image directory that it named, the caller finds a [Reference]:
// the name of the checkpoint, and the hash of its inventory, by which the right one is known. Callers put this
// directory into their archives, which are small then. [Reserve] prepares the directory before the container is
// touched, and leaves a reference there that is found when the dump is killed.
//
// [Call.Lock] is a lock on a file beside the runtime's state of a container. One checkpoint or restore of it goes on at
// a time. The file tells which processes a restore has made ([Lock.Begin], [Lock.Watch]), and the next restore of the
// container ends those that a killed one has left ([Lock.Clear]). [Call.BeforeDelete] does so before a removal, and
// keeps the runtime from removing carelessly what is left, or what a restore makes meanwhile.
//
// There are no other locks and no goroutines.
package oci
