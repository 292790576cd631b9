package kfdsim

import (
	"os/exec"
	"testing"
	"time"
)

// A process that is killed while its RESUME looks for pages lacks none: its end is no error of its GPU.
func TestLookUpOfEnded(t *testing.T) {
	s := startSim(t, Options{})
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	b := &bo{gpu: s.gpus[0], kind: boUserptr, size: pageSize, user: userRange{pid: pid, addr: pageSize}}
	s.mu.Lock()
	s.addBO(b)
	s.unlock()
	p := &kfdProcess{sim: s, pid: pid, pdds: []*pdd{{mem: map[int]*kfdMem{1: {bo: b}}}}}
	lost := func() bool {
		p.lookUpUserptrs()
		return b.lost
	}
	if lost() {
		t.Error("of one that runs: lost")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := startTime(pid); err != nil {
			break // a zombie
		} else if time.Now().After(late) {
			t.Fatal("it does not end")
		}
	}
	if lost() {
		t.Error("of a zombie: lost")
	}
	_ = cmd.Wait()
	if lost() {
		t.Error("of none: lost")
	}
}
