// Package posix holds the mount to its contract: what CRIU, runc and the tools around them do to an image directory,
// each as a test, and then real CRIU itself. The mount is served by a process of its own, as in use: this test binary,
// run again. What is read and written here are system calls on the mounted directory; nothing reaches around it, save
// for damage done to the store's packs.
package posix
