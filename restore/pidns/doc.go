// Package pidns makes pid namespaces for restored processes: a pid, session or group that is taken outside is
// free in there, and one checkpoint can be restored many times beside itself.
//
// # Who is in a namespace
//
// Its first process is an init of ours: a fork of this program that never executes another, with one thread, so that
// pid 1 is the only number it takes. It becomes the parent of processes that lose theirs, reaps them, and hands signals
// on to the first restored process. It ends, with that process's exit status, when nobody else is left in the
// namespace. It outlives the command that made it; but when that ends before [Namespace.Release], it ends at once, and
// the kernel ends everybody in the namespace with it. So a restore that is given up or killed leaves no process behind.
//
// CRIU is started in the namespace by the command, which stays its parent and speaks to it from outside. It gets
// numbers at the upper end, so that it is not in the way of those that the images need; [Namespace.Place] moves
// them.
//
// # Mounts
//
// The namespace has a mount namespace, too, because /proc has to show it: mounts of the host arrive there, what
// is mounted there stays there. Mounts of stores are detached in it when a restore is done: they would keep
// their daemon.
//
// # Threads
//
// What belongs to a namespace is done on an OS thread of its own that is in its mount namespace and whose
// children are born in the pid namespace ([Namespace.Do]). It ends with the Namespace; nothing else ever runs on
// it.
package pidns
