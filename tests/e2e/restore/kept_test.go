package restore

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// A checkpoint that a restored process still lacks memory from cannot be removed, by name or by a rule. The process
// goes on when the daemon is killed, and its successor refuses, too. When all memory is there, rm works.
func TestRemovedWhileMemoryFollows(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 64, Threads: 2, Seed: 8, Quiet: true})
	other := t.TempDir()
	must(t, os.WriteFile(filepath.Join(other, "inventory.img"), []byte("later"), 0o600))
	b.run("import", b.store, "two", other)
	x.mustRestore(onDemand, "--prefetch-rate", "1MiB") // a minute, unless the process asks for its memory

	const why = "its memory is still being brought into restored processes"
	removes := func() {
		t.Helper()
		for _, args := range [][]string{
			{"rm", "-y", b.store, "one"}, {"rm", "-n", b.store, "one"}, {"rm", "-y", b.store, "one", "two"},
		} {
			if out, err := b.try(args...); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v\n%s", args, err, out)
			}
		}
		for _, flag := range []string{"-n", "-y"} {
			out, err := b.try("rm", flag, "--keep-last", "1", b.store)
			if err != nil || !strings.Contains(out, "keep one ") || !strings.Contains(out, why) {
				t.Errorf("rm %s --keep-last 1: %v\n%s", flag, err, out)
			}
		}
		if !b.has("one") || !b.has("two") {
			t.Error("a checkpoint is gone")
		}
	}
	removes()
	for _, pid := range program.Role("daemon") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	must(t, poll(func() bool {
		out, err := b.try("stats", "--json", b.store)
		return err == nil && strings.Contains(out, `"adopted": true`)
	}))
	removes()
	must(t, x.Check(2, limit))
	if n := x.SIGBUS(); n != 0 {
		t.Errorf("%d pages could not be read", n)
	}
	must(t, poll(func() bool {
		_, err := b.try("rm", "-y", b.store, "one")
		return err == nil
	}))
	must(t, x.Check(2, limit))
	x.Kill()
	must(t, quietly(b))
}
