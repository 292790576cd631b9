package kfdsim

import (
	"io"
	"os/exec"
	"testing"
	"time"
)

// Another program's mount namespace with a copy of the mount keeps nobody
// waiting.
func TestCloseWithACopyOfTheMount(t *testing.T) {
	sim, err := Start(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "echo ready; exec cat")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		holder.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- sim.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Close waits for the other namespace")
	}
}
