// Package inject lets a stopped process make system calls that this process chooses, and can be killed at any moment
// without harm to the stopped one.
//
// # Why a kill does no harm
//
// A tracer that sets the registers of a process has to set them back. If the tracer dies in between, the kernel
// detaches, and the process runs on with the registers that it has at that moment. So nothing here depends on a
// tracer's life: before a call, a few instructions are written to a place that the process never executes by itself,
//
//	syscall
//	mov rax, …   each of the nine registers that a call takes or loses
//	jmp …        where the thread was
//
// and one PTRACE_SETREGS, which the kernel does as a whole or not at all, sets instruction pointer, number and
// arguments. If the tracer ends at any point, the thread makes the call and goes on where it was, with all its
// registers: SYSCALL changes RAX, RCX and R11 alone; flags, stack, vector registers and the other six are never
// touched. If the tracer lives, it takes the thread back at the end of the call, and the instructions after it never
// run.
//
// The place is behind the end of a segment of code, in its last page: the kernel maps whole pages, and an ELF file says
// how far its segment goes. Only private mappings are taken. The write then makes a copy of the page and touches no
// file, as with a debugger's breakpoint. What was there is put back; after a kill the bytes stay, and nobody executes
// them.
//
// # What a call does not disturb
//
// All threads of the process are stopped, by PTRACE_SEIZE and PTRACE_INTERRUPT, which send no signal. A system call
// that was interrupted so is made again (-ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND: its instruction once more;
// -ERESTART_RESTART_BLOCK: restart_syscall, with its time left). One in a restartable sequence (rseq) goes on at its
// abort handler, as after any preemption. A signal that comes meanwhile is delivered to the place where the thread
// was before the call is made, and the call follows at its handler's first instruction. PTRACE_O_EXITKILL is never
// set.
//
// # Detours
//
// A [Detour] changes one system call that a thread makes by itself, and needs no thread to be stopped but that one. The
// thread is traced and stands at the beginning of its call. The instructions of the detour are written to a place as
// above. One PTRACE_SETREGS gives the thread another call to make, and the instructions to come back to. They make
// further calls, and end with all registers and flags as the thread's own call would have left them. Branches in them
// change no flag. A kill leaves either the thread's own call or the whole detour.
//
// Nobody waits until the thread has gone through it. So its instructions stay, in a place where all bytes were zero,
// and where no call is made from: the process may be stopped, and make calls, while a thread is in a detour. The code
// of the program, the C library, the loader and libcuda has places: they are there as long as the process.
//
// When all places were used, a detour takes one again in which no thread is. A thread can be there in two ways. It was
// stopped there, or is in a system call of the detour: then its instruction pointer, in /proc/PID/task/TID/syscall, is
// in the place. Or it handles a signal that came there: then the address stands in the handler's frame, on the stack
// that the thread has now, or on one that such a frame leads to (sigaltstack(2)). So all words of these stacks are
// looked at, up to where the thread began. A word that was left on a stack may hold a place for no reason. Where a way
// back cannot be seen, no place is taken: a thread runs, or it or a frame is in a hold's code (see below) or in that of
// a call whose tracer was killed, or a stack is large, has a page that userfaultfd(2) has to bring, or none of them is
// the one on which the thread began.
//
// A seccomp filter that another thread sets for all of them at that moment may end the process.
//
// # Holding
//
// A tracer that is killed brings nothing back. For what has to be brought back in any case, [Task.Hold] puts code
// before each thread of the process itself: they block all signals and read from a pipe whose only other end is this
// process's. When it is gone, by a close or a kill, the first of them carries out a plan, and all go on where they
// were. A process that criu dumps meanwhile is restored in the same place, its pipe without the other end: it carries
// the plan out before all else. CRIU needs to know nothing of it. A plan is replaced by another one with one write of
// one word.
//
// A signal that comes meanwhile is handled when a thread unblocks it, which is before the end of that code; its handler
// may take long, and comes back there. So each thread leaves a mark by the last instruction but one, and the code is
// taken away only behind that. What is left is one instruction: a signal right before the last jump, whose handler
// still runs when the process is looked at, would come back to nothing.
//
// # Steps, and what a kill at each leaves
//
//	seized, interrupted        threads run on; an interrupted call is made again by the kernel
//	instructions written       the same, and bytes that nobody executes
//	registers set              the call is made, then the thread goes on where it was
//	registers set back         the thread goes on where it was
//	bytes put back, detached   nothing
//
// # Limits
//
// A signal that comes in a detour, and whose handler goes on with another stack by itself (as by swapcontext(3)) and
// leaves that one asleep: its frame is on a stack that nothing leads to. If the thread is then where it began, a later
// detour may take the place that it comes back to.
//
// x86-64 alone; processes of 32 bits, with a shadow stack in use, with a seccomp filter (which could kill for a call
// that the program never makes), or in uninterruptible sleep are refused. Sources: ptrace(2), syscall(2), rseq(2),
// elf(5); kernel/signal.c, arch/x86/kernel/signal.c, arch/x86/entry/entry_64.S and kernel/rseq.c of Linux 6.18.
package inject
