package restore

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process that has a pid that a restore needs is not one that has ended because it cannot be looked at: who waits for
// it to be reaped waits in vain, and is told nothing of it.
func TestTakenUnseen(t *testing.T) {
	taken := []Taken{{ID: os.Getpid()}}
	end := descriptors.Lack(t)
	name(taken)
	end()
	if taken[0].Over || !strings.Contains(taken[0].Who, "too many open files") {
		t.Errorf("taken by %s, which has ended: %v", taken[0].Who, taken[0].Over)
	}
	name(taken)
	if taken[0].Over || !strings.HasPrefix(taken[0].Who, "process ") {
		t.Errorf("taken by %s, which has ended: %v", taken[0].Who, taken[0].Over)
	}
}

// Nor has a killed criu left nothing because its forks cannot be looked at.
func TestForksUnseen(t *testing.T) {
	end := descriptors.Lack(t)
	_, err := forks(os.Getppid(), 0)
	end()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("it has left nothing: %v", err)
	}
}
