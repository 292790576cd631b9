// Package helper is the process beside CRIU that thinks for the CRIU plugin. The plugin starts it (gpucr-fs
// plugin-helper) once for a dump or a restore and talks to it over a control connection; package wire has the messages.
//
// A process and not a part of CRIU: a Go runtime there unblocks SIGCHLD in every thread, and this one outlives CRIU to
// unpause processes or to end them.
//
// # Dump
//
// The plugin issues the ioctls, for the driver takes them from the tracing thread alone, and hands over what they
// return: buckets and private data in shared memory, and a dma-buf for each buffer object (BO). The contents go by DMA
// into pages files, then the process image is written: a dump that fails midway has no process image. The processes
// stay paused until CRIU is done, or dead where it kills them. What outlives CRIU, because it was killed or a script of
// its user's failed, this process traces for a moment to unpause it.
//
// # Restore
//
// Images are read and GPUs mapped as soon as the process starts, while CRIU still forks. Tasks attach to the restore
// server, a thread of the main CRIU process (src/server.c), which passes on what they ask. For a process with KFD this
// process gives the task the buffers of the RESTORE ioctl ready-made, and the server a plan: who fills, and packets for
// it that lack only the dma-bufs. The server has the table and the gate:
//
//	task:    FILE → RESTORE ioctl → BOS… → RESTORED → the rest of its restore
//	server:                                         → fill
//	CRIU:                                                    RESUME waits for every fill
//
// It is asked about RESUME where it has a say. The process's own memory that its GPUs use is read once before: with
// lazy pages that brings it, and the driver could not wait for it.
//
// No process is resumed before the VRAM of all is in place, unless it comes on demand (below). A failed fill is told to
// RESUME, which kills the process, and CRIU fails. When CRIU ends, the server with it, without a goodbye and not all
// processes run their queues, every process that had the buffers of RESTORE is killed here: its memory or its queues
// would be wrong. (While CRIU waits in RESUME the kernel does, see exitkill.c; it lets go when no other process is left
// to resume.) As long as CRIU runs none is: past RESTORE_SIGCHLD it waits for ever for a task that dies. When this
// process is killed, a restore whose plans are made, by a daemon that fills, goes on without it, unless it has a say in
// RESUME.
//
// # VRAM on demand
//
// The driver keeps the queues of a restored process still until its RESUME, which anybody with the capability may issue
// by pid. With Options.Lazy a process runs when what its CPU may touch is in place, and this process issues RESUME when
// the rest is:
//
//	server:  fill: GTT, and VRAM that the driver maps for CPUs
//	here:                                                      → fill: the rest → RESUME
//	CRIU:                       RESUME is answered, the process runs
//
// What the CPU may touch is asked of flags and of /proc/PID/maps, when the process stands for the last time: one that
// has mapped more waits for all, and so does one with ranges of shared virtual memory. What was in place when the
// process began to run is never filled again, since it has changed; the rest nobody can have touched, so that a fill of
// it may begin anew when a daemon is killed.
//
// Fills of the rest take turns on each GPU, so that some queues run early: first those that had work at the dump. A
// fill that fails ends its process, with a line on standard error and in the system's log. A second process, the
// watchdog, has pidfds of all that run so: it ends them, with such a line, when this one is killed, and has a successor
// when it is killed itself. Package pending tells dumps which processes still wait for memory. It tells the next
// helper or daemon which processes will never get theirs.
//
// # Objects of render nodes, and dma-bufs
//
// The driver's CHECKPOINT does not tell of buffer objects that a process has made on a render node, or imported there.
// A dump lists each open's handles and has CRIU export them. It knows an object again in any process, by the inode
// number of its dma-buf, which it keeps open. Open dma-bufs are known the same way; one that nobody else holds is
// described in its own image. Our fields in the images have numbers from 1000 on; CRIU's plugin passes over them. What
// the driver does not export (memory of the process itself), and all of it before Linux 6.18, is refused at the dump.
//
// On a restore the first holder that opens its file makes the object and exports it:
//
//	task:    FILE → OBJECTS (its render node) → BOS → the rest
//	here:                    create, rename           → fill
//	         import into others' nodes, map to GPUs: at MAPPING, or before RESUME
//
// So nobody waits for somebody who waits. One that a process's KFD has comes with its RESTORE. No process runs before
// all of these are filled, on demand or not: others' CPUs and GPUs may have them.
//
// # Lock order
//
// watchdog.mu and objectNode.mu; then restore.mu, objects.mu, turns.mu and that of package pending, which are leaves.
package helper
