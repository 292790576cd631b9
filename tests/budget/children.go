package budget

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Children runs a test again and again in processes of their own, whose peaks of memory are taken. A peak is that of a
// process: nothing else that was allocated before or beside counts.
type Children struct{ bin, test string }

// NewChildren builds the tests of the package that t is of, without the race detector, under which memory says nothing.
func NewChildren(t *testing.T) *Children {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "plain.test")
	if out, err := exec.Command("go", "test", "-c", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the tests: %v\n%s", err, out)
	}
	return &Children{bin, t.Name()}
}

// Run runs the test with env, KEY=VALUE, which tells it that it is a child and what to read: n bytes. It fails t when
// the child's peak is more than parsing n bytes may take and what any such program takes, own bytes.
func (c *Children) Run(t *testing.T, env string, n, own int) {
	t.Helper()
	cmd := exec.Command(c.bin, "-test.run=^"+c.test+"$", "-test.v")
	// On one processor: where others keep several busy, the garbage collector comes late, and the peak is chance.
	cmd.Env = append(os.Environ(), env, "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := regexp.MustCompile(`peak (\d+) kB`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("no peak in\n%s", out)
	}
	peak, err := strconv.Atoi(string(m[1]))
	if err != nil || peak > (Free+Factor*n+own)>>10 {
		t.Errorf("%d bytes took %d MiB", n, peak>>10)
	}
	t.Logf("%d KiB: %s", n>>10, regexp.MustCompile(`(?m)took.*$`).Find(out))
}

// Tell is what a child does at last: it prints its peak, and for whoever looks the time since begin, and what it found.
func Tell(t *testing.T, begin time.Time, found string) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no peak in\n%s", status)
	}
	busy := time.Duration(use.Utime.Nano() + use.Stime.Nano())
	fmt.Printf("peak %s kB\n", m[1])
	fmt.Printf("took %v, %v on processors, peak %s kB: %s\n",
		time.Since(begin).Round(time.Millisecond), busy.Round(time.Millisecond), m[1], found)
}
