package park

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

var times = flag.Int("park.n", 3, "how often each program is dumped and restored")

// same compares the rings that a program has with those that it had.
func (r *rig) same(want []string) {
	r.t.Helper()
	if got := r.rings(); !slices.Equal(got, want) {
		r.t.Errorf("it has the rings\n%s\nand had\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A program with an idle ring goes on after a dump, and after a restore, where it was: the same descriptor, addresses
// and indices, completions that it has not reaped yet, requests that it has not submitted yet.
func TestIdle(t *testing.T) {
	for _, tc := range []struct {
		program, entries, flags string
	}{
		{"raw", "8", "0"}, {"raw", "1", "0"}, {"raw", "256", "0"}, {"raw", "8", "0x10000"},
		{"raw", "4", "0x400"}, {"raw", "8", "0x800"},
		{"raw", "64", "0x10c00"}, {"library", "8", "0"}, {"library", "128", "0"},
	} {
		t.Run(fmt.Sprintf("%s %s %s", tc.program, tc.entries, tc.flags), func(t *testing.T) {
			r := start(t, tc.program, tc.entries, tc.flags)
			total := r.say("go 50")
			some := 1
			if tc.entries != "1" {
				some = 2
			}
			for i := range *times {
				r.wants(fmt.Sprintf("leave %d", some), some)
				if tc.program == "raw" {
					r.wants("half 1", 1)
				}
				before := r.rings()
				name := fmt.Sprintf("c%d", i)
				r.ok("dump", "--park-rings", r.store, name+"a", "-t", r.name(), "--leave-running")
				r.same(before)
				r.ok("dump", "--park-rings", r.store, name+"b", "-t", r.name())
				r.gone()
				r.ok("restore", r.store, name+"b")
				r.same(before)
				if tc.program == "raw" {
					r.wants("reap", some+1)
				} else {
					r.wants("reap", some)
				}
				total += 5
				r.wants("go 5", total)
			}
		})
	}
}

// A ring with requests in flight is refused by name, before anything is touched, and the program goes on.
func TestBusy(t *testing.T) {
	for _, program := range []string{"raw", "library"} {
		t.Run(program, func(t *testing.T) {
			r := start(t, program, "8", "0")
			total := r.say("go 3")
			r.say("busy")
			before := r.rings()
			r.fails(
				[]string{"dump", "--park-rings", r.store, "one", "-t", r.name(), "--leave-running"},
				"requests in flight",
				"cannot be dumped",
			)
			r.same(before)
			r.wants("finish", 1)
			r.wants("go 2", total+2)
			r.ok("dump", "--park-rings", r.store, "one", "-t", r.name(), "--leave-running")
			r.wants("go 2", total+4)
		})
	}
}

// What cannot be made anew is refused by name, and the program goes on.
func TestRefused(t *testing.T) {
	const sqpoll, single, deferred = "2", "0x1000", "0x3000"
	for _, tc := range []struct{ name, flags, say, word string }{
		{"eventfd", "0", "eventfd", "registered eventfd"}, {"files", "0", "files", "registered files"},
		{"registered index", "0", "index", "IORING_REGISTER_RING_FDS"},
		{"two descriptors", "0", "dup", "has another descriptor"},
		{"a forked child", "0", "fork", "has the same ring open"}, {"watched", "0", "watch", "waited for by epoll"},
		{"one thread", single, "", "IORING_SETUP_SINGLE_ISSUER"},
		{"one thread's work", deferred, "", "IORING_SETUP_DEFER_TASKRUN"},
		{"polling thread", sqpoll, "", "IORING_SETUP_SQPOLL"}, {"buffers", "0", "buffers", "buffers of its own"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, "raw", "8", tc.flags)
			total := r.say("go 3")
			if tc.say != "" {
				r.say(tc.say)
			}
			before := r.rings()
			r.fails([]string{"dump", "--park-rings", r.store, "one", "-t", r.name(), "--leave-running"}, tc.word)
			if tc.flags != sqpoll { // whose thread moves indices by itself
				r.same(before)
			}
			r.wants("go 2", total+2)
		})
	}
}

// A program that uses its ring all the time is dumped between two uses.
func TestWorking(t *testing.T) {
	r := start(t, "raw", "8", "0")
	r.say("spin")
	for i := range *times {
		r.ok("dump", "--park-rings", r.store, fmt.Sprintf("c%d", i), "-t", r.name(), "--leave-running")
		was := r.say("count")
		for r.say("count") <= was {
			r.say("go 1")
		}
	}
	r.ok("dump", "--park-rings", r.store, "last", "-t", r.name())
	r.gone()
	r.ok("restore", r.store, "last")
	was := r.say("count")
	for r.say("count") <= was {
		r.say("go 1")
	}
}

// A dump that criu refuses gives the rings back.
func TestDumpFails(t *testing.T) {
	r := start(t, "raw", "8", "0")
	total := r.say("go 3")
	r.wants("leave 2", 2)
	before := r.rings()
	r.say("socket")
	r.fails([]string{"dump", "--park-rings", r.store, "one", "-t", r.name(), "--force"}, "criu dump")
	r.same(before)
	r.wants("reap", 2)
	r.wants("go 2", total+2)
}

// Where io_uring is forbidden a restore says so before anything runs.
func TestForbidden(t *testing.T) {
	r := start(t, "raw", "8", "0")
	r.ok("dump", "--park-rings", r.store, "one", "-t", r.name())
	r.gone()
	forbidden := command
	command = cli.Program(programs["forbid"])
	defer func() { command = forbidden }()
	r.fails(
		[]string{string(forbidden), "restore", r.store, "one"}, "needs io_uring", "kernel.io_uring_disabled",
		"seccomp",
	)
	command = forbidden
	r.gone()
	r.ok("restore", r.store, "one")
	r.say("go 1")
}

// Whenever the one who dumps is killed, the program goes on with its ring.
func TestDumpKilled(t *testing.T) {
	r := start(t, "raw", "8", "0")
	total := r.say("go 3")
	kills := 0
	for i := 0; kills < *times*2; i++ {
		r.wants("leave 2", 2)
		before := r.rings()
		cmd := prepare(
			t.Context(), "dump", "--park-rings", r.store, fmt.Sprintf("killed-%d", i), "-t", r.name(),
			"--leave-running",
		)
		must(t, cmd.Start())
		// Until the ring is gone, or the dump has ended without that being seen.
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for parked := false; !parked; {
			select {
			case err := <-ended:
				ended <- err
				parked = true
			default:
				if parked = len(r.rings()) == 0; parked {
					kills++
					time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				}
			}
		}
		syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		r.wants("reap", 2)
		r.same(afterReap(before))
		total++
		r.wants("go 1", total)
	}
}

// afterReap is what rings gives when all is reaped.
func afterReap(before []string) []string {
	after := slices.Clone(before)
	for i, line := range after {
		if name, _, ok := strings.Cut(line, " CqHead:"); ok {
			tail := slices.IndexFunc(before, func(l string) bool { return strings.HasPrefix(l, name+" CqTail:") })
			after[i] = strings.Replace(before[tail], "CqTail", "CqHead", 1)
		}
	}
	return after
}
