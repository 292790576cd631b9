// Package restore drives CRIU: it restores a checkpoint from an image directory while a lazy-pages server brings its
// memory, and dumps a process into an image directory.
//
// # Driving CRIU
//
// CRIU runs as `criu swrk`, which takes one request over a socket and asks back at its milestones ([go-criu]'s
// messages). It is started before anything else is known ([Start]): loading it takes as long as preparing a mount, and
// both happen at once. CRIU's other options go through a configuration file, which takes all of its long options;
// [ParseArgs] turns a command line into one.
//
// A killed CRIU leaves a frozen process behind when it dumps and parts of one when it restores. So a dump is never
// killed: to end one, the image directory is taken away, and CRIU lets the process run again. A restore is killed. The
// lazy-pages server knows the tasks and ends them. All other processes that CRIU has forked become children of this
// process, which ends them, whoever killed CRIU.
//
// # Timeline
//
// A [Timeline] holds the moments of a restore, CRIU's and those of the server, on one clock, and the bytes by where
// they came from. It is written as JSON and drawn as SVG.
//
// [go-criu]: https://github.com/checkpoint-restore/go-criu
package restore
