package wire

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// unknownOption is a socket option that no kernel has, as SO_PEERPIDFD is to one
// before 6.5.
const unknownOption = 0x7fff

// ended reports whether the process of a pidfd has ended; nil has.
func ended(pidfd *os.File) bool {
	return pidfd == nil || unix.PidfdSendSignal(int(pidfd.Fd()), 0, nil, 0) != nil
}

// reuse makes a socket pair in a child, sends an end over descriptor 3, and when it
// is told to, has the child end and another process take its pid.
const reuse = `
#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void child(void)
{
	int pair[2];
	char byte = 0, buf[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = buf, .msg_controllen = sizeof(buf) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	memset(buf, 0, sizeof(buf));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		_exit(1);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &pair[1], sizeof(int));
	if (sendmsg(3, &msg, 0) != 1)
		_exit(1);
	for (;;)
		pause();
}
int main(void)
{
	pid_t pid = fork(), again;
	uint64_t tid;
	struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&again, .set_tid_size = 1 };

	if (!pid)
		child();
	printf("%d\n", pid);
	fflush(stdout);
	getchar();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	again = pid;
	tid = syscall(SYS_clone3, &args, sizeof(args));
	if (!tid)
		for (;;)
			pause();
	printf("%d\n", (int)tid);
	fflush(stdout);
	getchar();
	if ((int)tid > 0)
		kill(tid, SIGKILL);
	return 0;
}
`

// A process that got the pid of the one who made a connection is not taken for it.
func TestPeerWhosePIDIsAnothers(t *testing.T) {
	// Somebody else may take the pid first.
	for range 10 {
		if reusePID(t) {
			return
		}
	}
	t.Fatal("the pid was another's each time")
}

// reusePID reports whether another process could get the pid.
func reusePID(t *testing.T) bool {
	t.Helper()
	program := filepath.Join(t.TempDir(), "reuse")
	cc := exec.Command("cc", "-x", "c", "-o", program, "-")
	cc.Stdin = strings.NewReader(reuse)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	cmd := exec.Command(program)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	defer func() {
		in.Close()
		cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	next := func() (pid int) {
		t.Helper()
		if !lines.Scan() {
			t.Fatal("the helper says nothing")
		}
		fmt.Sscan(lines.Text(), &pid)
		return pid
	}
	maker := next()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	files, err := received(oob[:n])
	if err != nil || len(files) != 1 {
		t.Fatalf("%d descriptors, %v", len(files), err)
	}
	c, err := NewConn(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pid, before, err := c.Peer()
	if err != nil || pid != maker || ended(before) {
		t.Fatalf("process %d, not %d: %v", pid, maker, err)
	}
	defer before.Close()
	fmt.Fprintln(in)
	if next() != maker {
		return false
	}
	pid, after, err := c.Peer()
	if err != nil || pid != maker {
		t.Fatalf("process %d, not %d: %v", pid, maker, err)
	}
	if !ended(before) || !ended(after) {
		t.Errorf("process %d is taken for the one that had its pid before", pid)
	}
	if after != nil {
		after.Close()
	}
	return true
}
