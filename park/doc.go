// Package park takes from processes, before a dump, what CRIU cannot dump and the processes can do without. It has them
// make the system calls for that themselves ([inject]).
//
// # Devices that a fork has left
//
// CUDA does not survive fork. The child of a process that uses it has descriptors and most mappings of /dev/nvidia*
// from its parent. It can do nothing with them, and it cannot be dumped because of them. [LetGo] unmaps and closes
// them. It does so only if they are proven to be the parent's: a child may have opened such devices itself, to ask for
// a GPU's temperature, and would lose that.
//
//   - The process was forked and never executed a program (PF_FORKNOEXEC).
//   - Each of its descriptors of such a device is the same open file (kcmp) as one of a process of the tree that it
//     descends from. Then its mappings are the parent's as well, because a mapping is made from a descriptor.
//   - It shares neither descriptors nor memory with another process of the tree, so that nobody else loses anything.
//
// All threads are stopped meanwhile: a number that another thread closes and opens anew would name another file. After
// a kill some of the devices are left, and the next dump takes them. The open files live on in the ancestor, so the
// driver does not notice.
//
// # Rings of io_uring
//
// CRIU dumps no ring, and a program cannot use another one than the one it has: it holds the descriptor, the addresses,
// and, as liburing does, indices of its own. [Park] takes an idle ring away and leaves the process held
// ([inject.Hold]), with a plan by which it makes the ring anew before any of its own code runs: after a dump that lets
// it run, after one that fails, after a restore, by whatever program, or when this one is killed. State is kept in the
// process's own memory, which criu dumps; a note beside the images helps to report errors before and after a restore,
// and nothing depends on it.
//
//  1. The process is stopped, and looked at once more. What cannot be made anew is refused: see below.
//  2. It is held. From here on a kill ends the hold, and the plan, empty so far, is carried out.
//  3. The ring's flags are found out, for the kernel shows them nowhere. It shows a ring's entries according to the
//     program's indices: these are moved for a moment, with a plan that moves them back. The process makes a ring with
//     the flags found, and closes it: where that is forbidden, or the layout another, the dump is refused.
//  4. The ring's memory is copied, and the plan becomes the one that makes the ring anew.
//  5. What was mapped is reserved (PROT_NONE), the descriptor closed; the kernel's worker threads end with the ring.
//
// The plan: io_uring_setup with the same parameters, whose layout must be the same; dup3 to the old number; the memory
// mapped at the old addresses; as many NOPs as the old ring had served, so that the kernel's own indices are where the
// program's are (0.1 µs each, 2^26 at most); the old memory copied back, with completions that nobody had reaped,
// requests not submitted yet, and the array. The kernel does not let a program choose the address of a ring
// (io_uring_get_unmapped_area refuses all). So the process first fills its whole address space with reservations, the
// largest pieces first, gives the one place free, and the kernel finds no other. If a resource is short it tries again.
// If it never works the process is killed, because it would go on without its ring.
//
// Refused are rings with requests in flight (more begun than completed, or polls), registered files, buffers,
// eventfd, credentials or index, SQPOLL, IOPOLL, SINGLE_ISSUER, DEFER_TASKRUN, R_DISABLED, NO_MMAP; that another
// process has, or another descriptor, or an epoll waits for; of processes with a seccomp filter, locked memory or a
// limited address space; and those of kernels before 6.9, which do not tell all that.
//
// What cannot be found out, and is not kept: COOP_TASKRUN, TASKRUN_FLAG (the new ring serves without being asked),
// SUBMIT_ALL, CLAMP, ATTACH_WQ, MADV_DONTFORK of the mappings, limits of workers. A multishot timeout that has fired as
// often as requests were begun without completion is not seen. A small ring of large entries without an array (SQE128
// and NO_SQARRAY, fewer than 64) shows their size only when it serves: from the plan's step until then, some
// microseconds, a kill leaves the program a ring of small entries.
//
// A kill may leave some pages of memory and the two ends of a pipe behind, which do no harm.
//
// Sources: io_uring_setup(2), io_uring_enter(2), io_uring_register(2); io_uring/io_uring.c, fdinfo.c, memmap.c,
// register.c and tctx.c of Linux 6.18, and include/uapi/linux/io_uring.h.
package park
