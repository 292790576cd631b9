// Package park dumps and restores programs that use io_uring, with the real commands and the real CRIU.
package park
