// Package park takes from processes, before a dump, what CRIU does not dump and they can do without, by system calls
// that they are made to make ([inject]).
//
// # Devices that a fork has left
//
// CUDA does not survive fork: a child of a process that uses it has that one's descriptors and most of its mappings
// of /dev/nvidia*, can do nothing with them, and cannot be dumped for them. [LetGo] unmaps and closes them. They must
// be the parent's, which is proven, not guessed: a child may have opened such devices itself, to ask for a GPU's
// temperature, and would lose that.
//
//   - The process was forked and never executed a program (PF_FORKNOEXEC).
//   - Each of its descriptors of such a device is the same open file (kcmp) as one of a process of the tree that it
//     descends from. Then so are its mappings: to make one takes a descriptor.
//   - It shares neither descriptors nor memory with another process of the tree, so that nobody else loses anything.
//
// All threads are stopped meanwhile: a number that another thread closes and opens anew would name another file. A
// kill leaves a part of the devices, and the next dump takes the rest. The open files live on in the ancestor, so no
// driver hears of it.
package park
