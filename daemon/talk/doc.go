// Package talk is the conversation of a restore or a dump: what the daemon and the command that runs CRIU pass each
// other.
//
// The command asks for an operation. The daemon makes ready and says so by a line of output, [Prepared]. The command
// runs CRIU and answers with a line of input, its verdict. In a restore the daemon says [Served] in between, when
// memory can be brought or turns out not to be; with Prepared.Early CRIU waits for that before tasks run. Then the
// daemon ends what is left of the restore or dump, or goes on with it.
//
// # Directories
//
// The daemon and the command need not see the same files: each may be in a mount namespace of its own. So they pass no
// paths but open directories, over a connection of their own (package wire): the command CRIU's work directory, where
// the daemon's guardian listens, and the daemon the images. The images are a mount that is attached nowhere: it is gone
// when the daemon and the command are gone, also when they were killed. The work directory cannot be such a mount: CRIU
// mounts its cgroup yard in it, and a process can mount only in its own mount namespace.
//
// The connection is made before the operation is asked for, and both name the same ID: [Places] brings them together.
//
// # Lock order
//
// Places.mu guards the table and is not held while anything is waited for. Lines of one output are written by one
// goroutine.
package talk
