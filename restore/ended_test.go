package restore

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
)

// A CRIU that is killed is not one that ends without a word.
func TestKilledCRIU(t *testing.T) {
	program := filepath.Join(t.TempDir(), "criu")
	script := "#!/bin/sh\nif [ \"$1\" = swrk ]; then kill -KILL $$; fi\necho Version: 4.2\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Start(Options{Program: program, EndTree: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Restore(t.Context(), t.TempDir(), t.TempDir(), "restore.log")
	if err == nil || !strings.Contains(err.Error(), "it was ended by a signal: killed") {
		t.Errorf("the restore ended with %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// An answer that lies there when CRIU has ended is taken, however late.
func TestLateAnswer(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	kind := rpc.CriuReqType_DUMP
	answer, err := (&rpc.CriuResp{Type: &kind, Success: ptr(true)}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Write(answer); err != nil {
		t.Fatal(err)
	}
	if err := ours.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	c := &CRIU{sock: ours, cmd: &exec.Cmd{}, exited: make(chan struct{})}
	close(c.exited)
	if _, err := c.do(t.Context(), kind, &rpc.CriuOpts{ImagesDirFd: ptr(int32(1))}); err != nil {
		t.Error(err)
	}
}
