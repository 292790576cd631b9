// Package uffd fills the memory of restored processes while they run: it is
// the lazy-pages server that criu restore --lazy-pages hands its tasks'
// userfaultfds to.
//
// # From CRIU
//
// All tasks of a restore share one connection to lazy-pages.socket in CRIU's work directory. Each sends its pid and its
// userfaultfd, a zombie its pid negated and nothing else; when all are restored the main CRIU process sends an end
// mark. Tasks fault before that, and are served at once; what fills ahead of faults starts after it, because only then
// is all memory registered. The kernel vouches for who sent what (SCM_CREDENTIALS, SCM_PIDFD): that is how a task whose
// memory cannot be brought is killed, and no other process.
//
// The socket is made by the Server, or before there is one: [Spawned.Listen] makes it in the provider and hands it to
// the guardian, which owns it from then on and accepts CRIU at once. Nobody has promised anything to the tasks then.
// They must not run before Begin has returned, see package restore (Hold); CRIU fails where Begin does. A guardian that
// does not begin ends the tasks that have come.
//
// # Filling
//
// Contents are known by file and offset. A Supplier brings them, asked for by
// faults and in the background; the Server puts each range into every address
// space that lacks it, so that what parent and forked children share is read
// once. Runs go in by UFFDIO_COPY up to 1 MiB a call, zero runs by
// UFFDIO_ZEROPAGE, and what cannot be read becomes UFFDIO_POISON: the process
// gets SIGBUS when it touches it, not wrong bytes.
//
// A fault is how a process waits for a page. Who reads its memory from outside does not wait: /proc/PID/cmdline and
// environ give less while their pages are missing. So these pages are demanded as soon as they can be filled
// (PlanTask.First). What a debugger reads in other places while memory is being filled may be missing too.
//
// # Events
//
// While its memory is filled a process forks, remaps, unmaps and gives memory
// up. space follows; events.go tells how, and what is done about reports that
// come out of order. A page is only filled when all that the process did
// before has been taken into account: memory tells how.
//
// What no event reports is looked up: guard pages before each fill (guards_linux.go),
// and at a fork what the child is to get empty (wipe.go).
//
// # Who is killed
//
// Provider, guardian, keeper and successor each live in a cgroup of their own where that is possible (cgroup_linux.go),
// the last three in sessions of their own. One kill ends one of them; those that are left go on, or end the tasks.
//
// A userfaultfd is let go when nobody has its memory any more, or nothing is missing there: what is missing would read
// as zero. The killed may leave somebody who shares their memory, or a child that cannot be found. What these lack is
// poisoned first, and their reports are read until it is.
//
// A CRIU that is making tasks may hang when they are ended. Who ends them waits for its end, and ends it
// (criu_linux.go). The keeper does not.
//
// # What is lacking
//
// Where there is no descriptor or no memory a message is left where it is until there is: a fork's report, a task or a
// packet that comes with descriptors. A memory whose report waits is passed over by what is brought meanwhile. Then its
// threads fault again, and ask for it anew.
//
// # Lock order
//
// memory.mu, then Server.mu. The supplier is called with neither held for
// writing.
package uffd
