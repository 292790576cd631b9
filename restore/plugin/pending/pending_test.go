package pending

import (
	"context"
	"errors"
	"fmt"
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

// abandoned leaves a process whose helper was killed, with its record.
func abandoned(t *testing.T) (path string, pid int, rec string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "vram")
	pid, _ = victim(t)
	c := New(path)
	at, err := c.Add(pid)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return path, pid, record(path, at)
}

// A record that cannot be read does not say that the memory is there, and stays.
func TestRecordThatCannotBeRead(t *testing.T) {
	path, pid, rec := abandoned(t)
	if err := os.Remove(rec); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(rec, 0o700); err != nil { // to read it gives an error that is not ErrNotExist
		t.Fatal(err)
	}
	if err := Await(t.Context(), path, func() (int, error) { return pid, nil }); err == nil {
		t.Error("memory that may be missing passes for memory that is there")
	}
	if err := EndAbandoned(path, func(int) {}); err == nil || left(t, path) != 1 {
		t.Errorf("nobody is told that a process may stand still: %v; %d records are left", err, left(t, path))
	}
}

// starved runs f and takes all descriptors away once it has read the record.
func starved(t *testing.T, rec string, f func() error) error {
	t.Helper()
	born, err := os.ReadFile(rec)
	if err == nil {
		err = errors.Join(os.Remove(rec), unix.Mkfifo(rec, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- f() }()
	w, err := os.OpenFile(rec, os.O_WRONLY, 0) // f is reading it
	if err != nil {
		t.Fatal(err)
	}
	low := limit
	for low.Cur = 0; ; low.Cur++ { // what is below is in use, and stays so
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", low.Cur)); err != nil || to == rec {
			break
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(born)
	w.Close()
	ferr := <-done
	os.Remove(rec)
	err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), os.WriteFile(rec, born, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return ferr
}

// A process that cannot be looked at for want of descriptors is not one that has ended.
func TestNoDescriptors(t *testing.T) {
	path, pid, rec := abandoned(t)
	who := func() (int, error) { return pid, nil }
	if err := starved(t, rec, func() error { return Await(t.Context(), path, who) }); !errors.Is(err, unix.EMFILE) {
		t.Errorf("memory that is missing passes for memory that is there: %v", err)
	}
	err := starved(t, rec, func() error {
		err := EndAbandoned(path, func(int) {})
		if _, err := os.Lstat(rec); err != nil {
			t.Error("the record is gone, and the process stands still")
		}
		return err
	})
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("nobody is told that a process may stand still: %v", err)
	}
	if pids := sweep(t, path); len(pids) != 1 || pids[0] != pid {
		t.Errorf("ended %v later, not %d", pids, pid)
	}
}
