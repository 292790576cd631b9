package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Descriptors of an application that is asked over pipes: where lines are written to and answers read from, and the
// other ends.
const (
	pipeRead = 900 + iota
	pipeAsk
	pipeAnswer
	pipeWrite
)

// hasPipes tells whether a process has the two pipes. One that is being restored may not yet.
func hasPipes(pid int) bool {
	var to [4]string
	for i := range to {
		var err error
		if to[i], err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, pipeRead+i)); err != nil ||
			!strings.HasPrefix(to[i], "pipe:") {
			return false
		}
	}
	return to[0] == to[1] && to[2] == to[3] && to[0] != to[2]
}

// sayPiped writes a line to a process and reads its answer. Nobody else may do so meanwhile.
func sayPiped(ctx context.Context, pid int, line string) (string, error) {
	if !hasPipes(pid) {
		return "", fmt.Errorf("process %d has no pipes", pid)
	}
	open := func(fd, mode int) (*os.File, error) {
		return os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), mode|syscall.O_NONBLOCK, 0)
	}
	to, err := open(pipeAsk, os.O_WRONLY)
	if err != nil {
		return "", err
	}
	defer to.Close()
	from, err := open(pipeAnswer, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer from.Close()
	defer context.AfterFunc(ctx, func() { from.SetReadDeadline(time.Now()) })()
	if _, err := fmt.Fprintln(to, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(from).ReadString('\n')
	return strings.TrimSpace(answer), err
}
