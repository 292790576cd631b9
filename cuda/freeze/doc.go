// Package freeze keeps a process from running while its GPU is away, all but the threads that the driver needs, and
// lets a restored one run with care.
//
// The driver's lock holds back calls that begin work. Others it lets through: on driver 580.159 a thread that asks
// whether an event is done, or how much memory is free, or, as JAX has one, whether an error came, looks at memory that
// the checkpoint has taken down (a channel's error notifier). The process is gone then.
//
// # A dump
//
// So a process is stopped before its checkpoint, as SIGSTOP does it, and continued after its restore. In between CRIU
// dumps it, and takes the stop along: what it restores is stopped as well. While the driver takes a step, its threads
// run: [Run] traces them, lets them leave the stop, and back into it at the end.
//
// Whoever is killed at whatever moment, the process stays stopped: a tracer's end brings the threads that it traced
// back into the stop. Who survives has to continue it. A step that was begun then is done once they run again.
//
// A CRIU that is killed leaves a thread in code that it had put into the process. That code goes back to where the
// thread was, but it may be stopped on its way there, and the driver's restore maps over it. [Expel] lets it go back
// before.
//
// # A restore
//
// There a process runs before it has its GPU. [Wake] traces all its threads. One that comes to memory which is not
// there takes a SIGSEGV of the kernel's: it stands still until the driver is done, forgets the signal and makes the
// access again. A fault that is the program's own comes once more then, and has its way. When the tracer is killed in
// between, such a thread takes its process along; the restore fails, and may be tried again.
//
// A system call that is given such memory still fails with EFAULT. Where a thread blocks SIGSEGV the kernel has given
// up the program's handler of it with the fault: force_sig_info_to_task in kernel/signal.c of Linux 6.18.
//
// # Who waits for the process
//
// A parent that waits with WUNTRACED, as su and sudo do, stops itself when its child is stopped. Who stops a process
// therefore continues its ancestors, and restored parents, with it.
package freeze
