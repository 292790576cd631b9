package uffd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Where cgroups of our own may be, by what /proc tells.
func TestCgroupBases(t *testing.T) {
	const (
		unified = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
		hybrid  = "32 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"
		part = "41 31 0:38 /user.slice /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n"
	)
	for _, c := range []struct {
		own, mounts string
		want        string // joined by spaces, "" for an error
	}{
		{"0::/\n", unified, "/sys/fs/cgroup/gpucr-fs"},
		{"0::/system.slice/store.service\n", unified, "/sys/fs/cgroup/gpucr-fs /sys/fs/cgroup/system.slice/gpucr-fs"},
		{"4:memory:/x\n0::/a\n", hybrid, "/sys/fs/cgroup/unified/gpucr-fs"},
		{"0::/user.slice/me/app\n", part, "/mnt/my groups/gpucr-fs /mnt/my groups/me/gpucr-fs"},
		{"0::/system.slice/x\n", part, ""},
		{"0::/system.slice/x\n", part + unified, "/sys/fs/cgroup/gpucr-fs /sys/fs/cgroup/system.slice/gpucr-fs"},
		{"0::/gpucr-fs/guardians\n", unified, "/sys/fs/cgroup/gpucr-fs"},
		{"0::/user/me/gpucr-fs/successors\n", unified, "/sys/fs/cgroup/user/me/gpucr-fs"},
		{"4:memory:/x\n", hybrid, ""},
		{"0::/a\n", "32 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", ""},
		{"", "nonsense - cgroup2", ""},
	} {
		got, err := basesOf(c.own, c.mounts)
		if strings.Join(got, " ") != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q, %q: %q, %v; want %q", c.own, c.mounts, got, err, c.want)
		}
	}
}

// session returns the session of a process.
func session(t *testing.T, pid int) int {
	t.Helper()
	sid, err := unix.Getsid(pid)
	if err != nil {
		t.Fatal(err)
	}
	return sid
}

// A kill of the guardian's cgroup or session does not reach the keeper.
func TestKeeperApart(t *testing.T) {
	k := startKept(t, os.Stdin)
	var keeper int
	if _, err := fmt.Sscan(k.keeper, &keeper); err != nil {
		t.Fatal(err)
	}
	guardian := k.cmd.Process.Pid
	// It leaves the session itself, once it runs.
	for late := time.Now().Add(time.Minute); session(t, keeper) == session(t, guardian); {
		if time.Now().After(late) {
			t.Fatal("they share a session")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := openCgroup(cgroupKeepers); err != nil {
		t.Fatalf("no cgroup can be made: %v; cgroup v2 has to be mounted and writable", err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", keeper))
	if err != nil || !slices.ContainsFunc(strings.Split(string(text), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "0::") && strings.HasSuffix(l, filepath.Join(cgroupBase, cgroupKeepers))
	}) {
		t.Errorf("the keeper is in %s, %v", text, err)
	}
	k.in.Close()
	if err := k.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A command starts where it can, and it is told why not elsewhere.
func TestStartIn(t *testing.T) {
	cmd, apart, err := startIn(cgroupSuccessors, func() *exec.Cmd { return exec.Command("cat", "/proc/self/cgroup") })
	if err != nil || apart != nil {
		t.Fatal(apart, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	cmd, apart, err = startIn("a/cgroup\x00", func() *exec.Cmd { return exec.Command("true") })
	if err != nil || apart == nil {
		t.Fatalf("in a cgroup that cannot be: %v, %v", apart, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	removeCgroups()
}
