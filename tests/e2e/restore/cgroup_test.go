package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// cgroups makes a folder of cgroup v2 for a test; where none is mounted it is mounted.
func cgroups(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var top string
	for line := range strings.Lines(string(text)) {
		head, tail, _ := strings.Cut(line, " - ")
		if f := strings.Fields(head); strings.HasPrefix(tail, "cgroup2 ") && len(f) > 4 {
			top = f[4]
			break
		}
	}
	if top == "" {
		top = t.TempDir()
		must(t, unix.Mount("cgroup2", top, "cgroup2", 0, ""))
		t.Cleanup(func() { must(t, unix.Unmount(top, unix.MNT_DETACH)) })
	}
	dir := filepath.Join(top, fmt.Sprintf("gpucr-test-%d", os.Getpid()))
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { must(t, poll(func() bool { return unix.Rmdir(dir) == nil })) })
	return dir
}

func poll(ok func() bool) error {
	for end := time.Now().Add(limit); !ok(); wait(5) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v", limit)
		}
	}
	return nil
}

// cgroup is one cgroup of a test.
type cgroup string

func newCgroup(t *testing.T, above, name string) cgroup {
	t.Helper()
	c := cgroup(filepath.Join(above, name))
	must(t, os.Mkdir(string(c), 0o755))
	t.Cleanup(func() {
		if _, err := os.Stat(string(c)); err != nil {
			return // removed already
		}
		c.kill(t)
		must(t, poll(func() bool { return unix.Rmdir(string(c)) == nil }))
	})
	return c
}

// run runs a command of the program in the cgroup.
func (c cgroup) run(t *testing.T, args ...string) error {
	t.Helper()
	dir, err := os.Open(string(c))
	must(t, err)
	defer dir.Close()
	cmd := program.Command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return err
}

// kill kills all that is in the cgroup, at once.
func (c cgroup) kill(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(string(c), "cgroup.kill"), []byte("1"), 0))
}

// of returns the cgroup v2 of a process.
func of(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	_, path, _ := strings.Cut("\n"+string(text), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	return path
}

func oomScoreAdj(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	return strings.TrimSpace(string(text))
}

func keepers(guardians []int) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range names {
		var pid, up int
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if n, _ := fmt.Sscanf(string(stat), "%d (gpucr-keeper) S %d", &pid, &up); n == 2 &&
			slices.Contains(guardians, up) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// The daemon's cgroup is killed as a whole, as when its unit is stopped or the kernel ends it for want of memory: the
// process goes on with memory that checks out.
func TestDaemonsCgroupKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 64, Threads: 2, Seed: 21, Quiet: true})
	above := cgroups(t)
	rnd := source(t)
	// Only who may lower its score has guardians that no want of memory ends.
	guarded := oomScoreAdj(os.Getpid())
	head, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	must(t, unix.Capget(&head, &data[0]))
	if data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		guarded = "-1000"
	}
	for range *strikes {
		daemons := newCgroup(t, above, "daemon")
		mnt := t.TempDir()
		must(t, daemons.run(t, append([]string{"mount", b.store, mnt}, b.flags...)...))
		_, err := x.restore("--prefetch-rate", "4MiB")
		must(t, err)
		wait(rnd.IntN(500))
		guardians := program.Role("guardian")
		where := map[string]string{"the daemon": daemons.name()}
		for _, pid := range guardians {
			where["a guardian"] = of(pid)
			// One that waits for the next restore may have begun just now.
			must(t, poll(func() bool { return oomScoreAdj(pid) == guarded }))
		}
		for _, pid := range keepers(guardians) {
			where["a keeper"] = of(pid)
		}
		daemons.kill(t)
		must(t, poll(func() bool { return len(daemons.processes()) == 0 }))
		must(t, unix.Unmount(mnt, unix.MNT_DETACH))
		must(t, poll(func() bool { return len(program.Role("daemon")) > 0 || len(program.Role("guardian")) == 0 }))
		for _, pid := range program.Role("daemon") {
			where["the successor"] = of(pid)
			must(t, poll(func() bool { return oomScoreAdj(pid) == oomScoreAdj(os.Getpid()) }))
		}
		seen := make(map[string]bool)
		for _, path := range where {
			seen[path] = true
		}
		if len(where) != 4 || len(seen) != 4 {
			t.Errorf("they should have a cgroup each: %v", where)
		}
		must(t, x.Check(2, limit))
		x.Kill()
		if n := x.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
		must(t, quietly(b))
		must(t, unix.Rmdir(string(daemons)))
	}
}

// name is the cgroup's as its processes have it.
func (c cgroup) name() string {
	return "/" + filepath.Join(filepath.Base(filepath.Dir(string(c))), filepath.Base(string(c)))
}

func (c cgroup) processes() []string {
	text, _ := os.ReadFile(filepath.Join(string(c), "cgroup.procs"))
	return strings.Fields(string(text))
}

// The guardian's session is killed: its keeper is in another, and the process ends instead of reading zeros.
func TestGuardiansGroupKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 64, Threads: 3, Seed: 22, Cold: 64})
	for range *strikes {
		_, err := x.restore(onDemand, "--prefetch-rate", "4MiB")
		must(t, err)
		for _, pid := range program.Role("guardian") {
			syscall.Kill(-pid, syscall.SIGKILL)
		}
		must(t, x.Ended(limit))
		must(t, quietly(b))
	}
}
