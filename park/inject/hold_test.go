//go:build amd64

package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// secret is what the plan of these tests writes.
const secret = 0x5eed

// hold makes a process wait, with a plan that writes a word behind its own data.
func hold(pid int, o Options) (h *Hold, err error) {
	err = Stop(pid, o, func(t *Task) error {
		if h, err = t.Hold(64, 256); err != nil {
			return err
		}
		var c Code
		c.Word(h.Free(), secret)
		return h.Plan(c)
	})
	return h, err
}

// Nobody runs while a process is held, signals wait, and the plan is carried out before anybody goes on.
func TestHold(t *testing.T) {
	for first := range threads {
		p := start(t, first)
		before, err := Mappings(p.pid)
		must(t, err)
		for range 5 {
			h, err := hold(p.pid, Options{})
			must(t, err)
			was := p.counts()
			must(t, Stop(p.pid, Options{}, work))
			word := make([]byte, 4)
			must(t, (&Task{PID: p.pid}).Read(h.Free(), word))
			if now := p.counts(); now != was || binary.LittleEndian.Uint32(word) != 0 {
				t.Errorf("somebody runs: %v, then %v; %x", was, now, word)
			}
			must(t, h.Close())
			p.goesOn()
			must(t, (&Task{PID: p.pid}).Read(h.Free(), word))
			if binary.LittleEndian.Uint32(word) != secret {
				t.Errorf("the plan has written %x", word)
			}
			must(t, h.Held().Leave(p.pid, timeout, Options{}))
			p.goesOn()
		}
		after, err := Mappings(p.pid)
		must(t, err)
		if len(after) != len(before) {
			t.Errorf("it had %d mappings and has %d", len(before), len(after))
		}
	}
}

// A signal that came while a process was held is handled at the end of the hold's code, and the handler comes back
// there, whenever that is: the code is not taken away before.
func TestHandlerOutlastsHold(t *testing.T) {
	const calls = 5
	p := start(t, calls)
	h, err := hold(p.pid, Options{})
	must(t, err)
	must(t, unix.Tgkill(p.pid, p.pid, unix.SIGUSR1))
	must(t, h.Close())
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	begun := make([]byte, 1)
	for end := time.Now().Add(timeout); begun[0] == 0; time.Sleep(time.Millisecond) {
		if _, err := f.ReadAt(begun, 48); err != nil || time.Now().After(end) {
			t.Fatalf("no handler runs: %v", err)
		}
	}
	must(t, h.Held().Leave(p.pid, timeout, Options{}))
	_, err = f.WriteAt([]byte{1}, 56)
	must(t, err)
	p.goesOn()
}

// A process that is stopped while it comes to wait has, when it goes on, the signals blocked that it had.
func TestStoppedOnItsWay(t *testing.T) {
	const calls = 5
	p := start(t, calls)
	blocked := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
		must(t, err)
		_, rest, _ := strings.Cut(string(text), "SigBlk:")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	const usual = "\t0000000000002000" // SIGALRM, once its first thread has begun
	for end := time.Now().Add(timeout); blocked() != usual; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it has %s blocked", blocked())
		}
	}
	for at := 1; at <= 3; at++ {
		n := 0
		h, err := hold(p.pid, Options{Step: func(name string) {
			if name == "thread on its way" {
				if n++; n == at {
					must(t, unix.Kill(p.pid, unix.SIGSTOP))
				}
			}
		}})
		must(t, err)
		must(t, unix.Kill(p.pid, unix.SIGCONT))
		must(t, h.Close())
		must(t, h.Held().Leave(p.pid, timeout, Options{}))
		p.goesOn()
		if now := blocked(); now != usual {
			t.Errorf("stopped at %d: it has %s blocked, and had %s", at, now, usual)
		}
	}
}

// A plan that fails ends the process: it would go on without what it had.
func TestPlanFails(t *testing.T) {
	p := start(t, 2)
	var h *Hold
	must(t, Stop(p.pid, Options{}, func(task *Task) (err error) {
		if h, err = task.Hold(64, 256); err != nil {
			return err
		}
		var c Code
		c.Call(unix.SYS_CLOSE, 1<<20)
		c.Jump(h.Failed())
		return h.Plan(c)
	}))
	must(t, h.Close())
	<-p.ended
	if err := h.Held().Leave(p.pid, timeout, Options{}); !errors.Is(err, ErrGone) {
		t.Errorf("it says %v", err)
	}
}

// The holding process is killed at each of its steps in turn: the process goes on.
func TestHoldKilledAtEveryStep(t *testing.T) {
	for _, first := range []int{0, 1, 2} {
		p := start(t, first)
		p.killedAtEveryStep("hold", 40)
		must(t, Stop(p.pid, Options{}, work))
		p.goesOn()
	}
}
