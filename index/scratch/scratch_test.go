package scratch

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const prefix = "gpucr-fs-test-"

// TestMain is also a process that makes a folder, writes into it and is killed.
func TestMain(m *testing.M) {
	if parent := os.Getenv("SCRATCH_PARENT"); parent != "" {
		d, err := Make(parent, prefix)
		if err == nil {
			err = os.WriteFile(filepath.Join(d.Path(), "file"), []byte("x"), 0o600)
		}
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString(d.Path() + "\n")
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

func count(t *testing.T, parent string) int {
	t.Helper()
	all, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestKilled: the folder of a process that lives stays, that of one that was killed goes with the next.
func TestKilled(t *testing.T) {
	parent := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SCRATCH_PARENT="+parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := bufio.NewScanner(out)
	if !line.Scan() {
		t.Fatal("it made nothing")
	}
	theirs := line.Text()
	other := filepath.Join(parent, "another")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	made := func() {
		t.Helper()
		d, err := Make(parent, prefix)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	made()
	if _, err := os.Stat(filepath.Join(theirs, "file")); err != nil {
		t.Errorf("what a living process has: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	made()
	if n := count(t, parent); n != 1 {
		t.Errorf("%d folders are left", n)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a folder of somebody else: %v", err)
	}
}

// TestMounted: what is mounted in a folder is not gone into.
func TestMounted(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := unix.Mount("tmpfs", outside, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(outside, unix.MNT_DETACH)
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Make(parent, prefix)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(d.Path(), "mnt")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if err := d.Close(); err == nil {
		t.Error("it was removed")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}
