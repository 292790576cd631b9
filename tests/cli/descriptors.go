package cli

import "syscall"

// CloseInheritedOnExec keeps what a test was started with, such as a lock, from the processes that it starts: these are
// to be dumped.
func CloseInheritedOnExec() {
	for fd := 3; fd < 64; fd++ {
		syscall.CloseOnExec(fd)
	}
}
