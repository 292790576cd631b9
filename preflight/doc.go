// Package preflight tells, before anything is touched, what keeps a process tree from being dumped, or from coming
// back.
//
// CRIU finds an obstacle when it meets it: after the tree is frozen, and for a process with an NVIDIA GPU after its GPU
// state was taken. The driver finds some when it is to give a GPU back, and then the process is lost. All that can be
// known from outside is looked for here, by reading /proc alone: no process is stopped, traced or asked.
//
// # What is looked at
//
// [Look] lists the tree, reads the status, descriptors, mappings and environment of each process, and then checks what
// takes a view of the whole tree: whether the other end of a socket, the leader of a session, the master of a terminal
// belongs to it. A [Finding] says what was found, in which process, what to do, and what it stops ([Effect]). What is
// known of CRIU is what CRIU 4.2 does; tests/e2e/preflight has for each finding a real process, and lets a real CRIU
// refuse it.
//
// /proc tells a good deal about CUDA (driver 580 was looked at):
//
//   - each context maps its GPU's device file once, readable and writable;
//
//   - each context maps /dev/nvidia-uvm below 16 TiB, 2 MiB long. Other mappings of that file are managed memory. A
//     forked child inherits none of them, but it inherits descriptors and other mappings: a process with a context's
//     mapping and none of nvidia-uvm is a forked child;
//
//   - NCCL's communicators listen on an abstract socket @/tmp/nccl-socket-*. A loaded library proves nothing, because
//     PyTorch always loads it;
//
//   - a process that maps /dev/shm/cuda.shm.UID.PID.N, made by another PID, uses that process's memory by CUDA IPC, as
//     PyTorch does to share tensors. Memory alone, without an event, leaves no such file.
//
// Access of one GPU to another's memory leaves no trace in /proc.
//
// # Bounds
//
// Files of /proc are read as streams. Processes that end meanwhile are left out. Regular files are looked at without
// asking a server for their state (AT_STATX_DONT_SYNC); where a file system hangs nevertheless, Look returns when its
// time is over, with an error.
package preflight
