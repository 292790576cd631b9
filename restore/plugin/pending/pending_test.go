package pending

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// victim is a process that would live for long; ended tells that it does not.
func victim(t *testing.T) (pid int, ended <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	return cmd.Process.Pid, done
}

// sweep ends what is abandoned, and says who that was.
func sweep(t *testing.T, path string) (pids []int) {
	t.Helper()
	if err := EndAbandoned(path, func(pid int) { pids = append(pids, pid) }); err != nil {
		t.Fatal(err)
	}
	return pids
}

func left(t *testing.T, path string) int {
	t.Helper()
	list, err := os.ReadDir(records(path))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A process is ended when nobody holds its lock any more, and left alone before that, and when its memory is there.
func TestEndAbandoned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vram")
	if pids := sweep(t, path); pids != nil {
		t.Errorf("ended %v where nothing was begun", pids)
	}
	lost, lostEnded := victim(t)
	kept, _ := victim(t)
	well, _ := victim(t)
	helper, other := New(path), New(path)
	var at int64
	for c, pids := range map[*Processes][]int{helper: {lost, well}, other: {kept}} {
		for _, pid := range pids {
			n, err := c.Add(pid)
			if err != nil {
				t.Fatal(err)
			}
			if pid == well {
				at = n
			}
		}
	}
	if err := helper.Remove(at); err != nil {
		t.Fatal(err)
	}
	if pids := sweep(t, path); pids != nil {
		t.Errorf("ended %v while somebody brings their memory", pids)
	}
	who := func() (int, error) { return lost, nil }
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Await(short, path, who); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody waits for memory on its way: %v", err)
	}
	fd, err := unix.Dup(int(helper.Locks().Fd())) // as who watches over them has
	if err != nil {
		t.Fatal(err)
	}
	helper.Close() // as the kernel does
	if pids := sweep(t, path); pids != nil {
		t.Errorf("ended %v while somebody watches over them", pids)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), path, who); !errors.Is(err, ErrAbandoned) {
		t.Errorf("memory that does not come: %v", err)
	}
	if err := Await(t.Context(), path, func() (int, error) { return well, nil }); err != nil {
		t.Errorf("memory that is there: %v", err)
	}
	if pids := sweep(t, path); len(pids) != 1 || pids[0] != lost {
		t.Errorf("ended %v, not %d", pids, lost)
	}
	<-lostEnded
	if n := left(t, path); n != 1 {
		t.Errorf("%d records, one process waits", n)
	}
	other.Close()
	if pids := sweep(t, path); len(pids) != 1 || pids[0] != kept || left(t, path) != 0 {
		t.Errorf("ended %v, not %d; %d records are left", pids, kept, left(t, path))
	}
}

// A record of a process that is gone is no other's that has its pid.
func TestAnotherOfThatPid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vram")
	pid, _ := victim(t)
	c := New(path)
	at, err := c.Add(pid)
	if err == nil {
		err = os.WriteFile(record(path, at), []byte("1"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := Await(t.Context(), path, func() (int, error) { return pid, nil }); err != nil {
		t.Errorf("a former process's memory: %v", err)
	}
	if pids := sweep(t, path); pids != nil || left(t, path) != 0 {
		t.Errorf("ended %v; %d records are left", pids, left(t, path))
	}
}
