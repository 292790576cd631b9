package main

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A helper that connects while the restore command has no descriptor left is heard when it has some again.
func TestHelperIsHeardWithoutDescriptors(t *testing.T) {
	v, err := listenVRAM()
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := descriptors.Lack(t)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: v.path()})
	time.Sleep(20 * time.Millisecond) // the command tries to take it
	end()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("{\"pid\":7}\n")); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.wait(ctx); err != nil || len(v.marks()) != 1 {
		t.Errorf("the helper was not heard: %v, %v", err, v.marks())
	}
}
