// Package restore drives CRIU: it restores a checkpoint from an image directory while a lazy-pages server brings its
// memory, and dumps a process into an image directory.
//
// # Driving CRIU
//
// CRIU runs as `criu swrk`, which takes one request over a socket and asks back at its milestones ([go-criu]'s
// messages). It is started before anything else is known ([Start]): loading it takes as long as preparing a mount, and
// both happen at once. What the user wants of CRIU beside that goes through a configuration file, which knows all of
// CRIU's long options; [ParseArgs] turns a command line into one.
//
// A killed CRIU leaves a frozen process behind when it dumps and parts of one when it restores. So a dump is never
// killed: who wants to end it takes the image directory away, and CRIU lets the process run again. A restore is killed;
// the lazy-pages server, which knows the tasks, ends them, and whoever killed it, this process is the parent of all
// that it has forked, then, and ends what is left.
//
// # Timeline
//
// A [Timeline] holds the moments of a restore, CRIU's and those of the server, on one clock, and the bytes by where
// they came from. It is written as JSON and drawn as SVG.
//
// [go-criu]: https://github.com/checkpoint-restore/go-criu
package restore
