package park

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/park/inject"
)

// killAt tells a child of this test to let a process go, and to end itself at the step of that number.
const killAt = "PARK_TEST_KILL_AT"

var family string

func TestMain(m *testing.M) {
	if at := os.Getenv(killAt); at != "" {
		os.Exit(tracer(at))
	}
	dir, err := os.MkdirTemp("", "park-")
	if err == nil {
		family, err = compile(dir, "family")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// compile builds a program of src/ into a folder.
func compile(dir, name string, libraries ...string) (string, error) {
	out := filepath.Join(dir, name)
	args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", out,
		"src/" + name + ".c"}, libraries...)
	if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s; apt-get install gcc libc6-dev", err, said)
	}
	return out, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nodes makes stand-ins for a GPU's devices: one to open, one to map.
func nodes(t *testing.T) (open, mapped string) {
	t.Helper()
	names, err := filepath.Glob("/sys/class/block/*/dev")
	must(t, err)
	if len(names) == 0 {
		t.Fatal("no block device; load the module loop")
	}
	text, err := os.ReadFile(names[0])
	must(t, err)
	var major, minor uint32
	_, err = fmt.Sscanf(string(text), "%d:%d", &major, &minor)
	must(t, err)
	open, mapped = fmt.Sprintf("%s-park%d", devices, os.Getpid()), fmt.Sprintf("%s-park%d-mapped", devices, os.Getpid())
	for path, node := range map[string]struct {
		mode uint32
		dev  uint64
	}{open: {unix.S_IFCHR | 0o600, unix.Mkdev(10, 229)}, mapped: {unix.S_IFBLK | 0o600, unix.Mkdev(major, minor)}} {
		must(t, unix.Mknod(path, node.mode, int(node.dev)))
		t.Cleanup(func() { os.Remove(path) })
	}
	return open, mapped
}

// relatives are a process with devices and the child that it has forked.
type relatives struct {
	t             *testing.T
	parent, child int
	in            io.Writer
	out           *bufio.Reader
}

func start(t *testing.T) *relatives {
	t.Helper()
	open, mapped := nodes(t)
	r := &relatives{t: t}
	cmd := exec.Command(family, open, mapped)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	r.in, r.out = in, bufio.NewReader(out)
	line, err := r.out.ReadString('\n')
	must(t, err)
	_, err = fmt.Sscan(line, &r.parent, &r.child)
	must(t, err)
	return r
}

// answers checks that the child goes on with what is its own.
func (r *relatives) answers() {
	r.t.Helper()
	fmt.Fprintln(r.in, "?")
	if line, err := r.out.ReadString('\n'); err != nil || line != "ok\n" {
		r.t.Fatalf("the child says %q, %v", line, err)
	}
}

func (r *relatives) has(pid, descriptors, mappings int) {
	r.t.Helper()
	l, err := leftovers(pid)
	if err != nil || len(l.Descriptors) != descriptors || len(l.Mappings) != mappings {
		r.t.Errorf("process %d has %+v, %v; want %d descriptors and %d mappings", pid, l, err, descriptors, mappings)
	}
}

func TestLetGo(t *testing.T) {
	r := start(t)
	all := []int{r.parent, r.child}
	before, err := leftovers(r.parent)
	must(t, err)
	if len(before.Descriptors) != 5 || len(before.Mappings) < 4 {
		t.Fatalf("the parent has %+v", before)
	}
	// Without its parent nobody knows whose the devices are; the parent's are its own.
	for pid, among := range map[int][]int{r.child: {r.child}, r.parent: all} {
		if _, err := LetGo(pid, among, inject.Options{}); err == nil {
			t.Errorf("process %d among %v is let go", pid, among)
		}
	}
	r.has(r.child, len(before.Descriptors), len(before.Mappings))
	for range 2 { // there is nothing the second time
		_, err = LetGo(r.child, all, inject.Options{})
		must(t, err)
		r.has(r.child, 0, 0)
	}
	r.has(r.parent, len(before.Descriptors), len(before.Mappings))
	r.answers()
	must(t, syscall.Kill(r.child, syscall.SIGKILL))
	_, err = LetGo(r.child, all, inject.Options{})
	must(t, err)
}

func tracer(what string) int {
	var parent, child, at int
	if _, err := fmt.Sscan(what, &parent, &child, &at); err != nil {
		return 2
	}
	n := 0
	_, err := LetGo(child, []int{parent, child}, inject.Options{Step: func(string) {
		if n++; n == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Whoever lets a child go is killed at each of its steps in turn. The child goes on, and the last one finds what is
// left.
func TestLetGoKilledAtEveryStep(t *testing.T) {
	for at := 1; ; at++ {
		r := start(t)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d", killAt, r.parent, r.child, at))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && !exit.Sys().(syscall.WaitStatus).Signaled() {
			t.Fatalf("step %d: %v: %s", at, err, strings.TrimSpace(string(out)))
		}
		r.answers()
		_, lerr := LetGo(r.child, []int{r.parent, r.child}, inject.Options{})
		must(t, lerr)
		r.has(r.child, 0, 0)
		r.answers()
		for _, f := range []string{devices + fmt.Sprintf("-park%d", os.Getpid()),
			devices + fmt.Sprintf("-park%d-mapped", os.Getpid())} {
			must(t, os.Remove(f))
		}
		if err == nil {
			if at < 30 {
				t.Errorf("%d steps only", at)
			}
			return
		}
	}
}
