package park

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/park"
	"github.com/gpucr/gpucr-fs/park/inject"
)

// killAt tells a child of this test to park a program's rings, and to end itself at the step of that number.
const killAt = "PARK_E2E_KILL_AT"

func parker(what string) int {
	var pid, at int
	if _, err := fmt.Sscan(what, &pid, &at); err != nil {
		return 2
	}
	n := 0
	p, err := park.Park(pid, []int{pid}, inject.Options{Step: func(string) {
		if n++; n == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}})
	if err == nil {
		err = p.Unpark()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Whoever parks rings is killed at each of its steps in turn: the program goes on, with the ring that it had. Left
// out are small rings of large entries without an array (0x10400): of these alone the size is not known between two
// of the steps.
func TestParkKilledAtEveryStep(t *testing.T) {
	for _, flags := range []string{"0", "0x10000"} {
		t.Run(flags, func(t *testing.T) {
			r := start(t, "raw", "8", flags)
			total := r.say("go 1")
			for at := 1; ; at++ {
				r.wants("leave 2", 2)
				r.wants("half 1", 1)
				before := r.rings()
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", killAt, r.pid, at))
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if errors.As(err, &exit) && !exit.Sys().(syscall.WaitStatus).Signaled() {
					t.Fatalf("step %d: %v: %s", at, err, out)
				}
				if err == nil {
					r.same(before)
				}
				r.wants("reap", 3)
				total++
				r.wants("go 1", total)
				if err == nil {
					if at < 100 {
						t.Errorf("%d steps only", at)
					}
					return
				}
			}
		})
	}
}
