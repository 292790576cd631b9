// Package freeze keeps a process from running while its GPU is away, except the threads that the driver needs, and lets
// a restored process run before its GPU is back.
//
// The driver's lock holds back calls that begin work. Others it lets through: on driver 580.159 a thread that asks
// whether an event is done, or how much memory is free, or, as JAX has one, whether an error came, looks at memory that
// the checkpoint has taken down (a channel's error notifier). The process is gone then.
//
// # A dump
//
// So a process is stopped before its checkpoint, as SIGSTOP does it, and continued after its restore. In between CRIU
// dumps it with its stop: the restored process is stopped as well. While the driver takes a step, its threads run:
// [Run] traces them, lets them leave the stop, and puts them back into it at the end.
//
// The process stays stopped, whichever program is killed at whatever moment: when a tracer ends, the threads that it
// traced go back into the stop. A program that survives has to continue the process. A step that was begun is then done
// once the threads run again.
//
// While the driver copies VRAM into memory its threads can also be stopped at each system call, and made to map memory
// of huge pages: see [Calls], and package inject.
//
// A CRIU that is killed leaves a thread in code that it had put into the process. That code goes back to where the
// thread was, but it may be stopped on its way there, and the driver's restore maps over it. [Expel] lets it go back
// before.
//
// # A restore
//
// There a process runs before it has its GPU. [Wake] traces all its threads. A thread that touches memory which is not
// there gets a SIGSEGV from the kernel. The tracer stops it until the driver is done, drops the signal, and lets it
// make the access again. If the fault is the program's own it comes once more, and the program gets it. If the tracer
// is killed in between, the signal ends the process; the restore fails, and may be tried again.
//
// A system call that is given such memory still fails with EFAULT. Where a thread blocks SIGSEGV the kernel has given
// up the program's handler of it with the fault: force_sig_info_to_task in kernel/signal.c of Linux 6.18.
//
// When the driver has read the memory that VRAM was saved in, it gives it back by one munmap. The process would wait
// for that, half a second for some GB of small pages. With [Watch] the thread that copies is found by the processor
// time that it has used. From then on it is stopped at its system calls, and can be given another one.
//
// # Who waits for the process
//
// A parent that waits with WUNTRACED, as su and sudo do, stops itself when its child is stopped. Therefore a program
// that stops a process also continues its ancestors, and so do restores.
package freeze
