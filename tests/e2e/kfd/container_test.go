package kfd

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

func TestContainer(t *testing.T) {
	b := newBench(t, kfdsim.Options{})
	c := b.NewContainer([]string{"CRIU_LIBS_DIR=" + b.plugin, "KFDPLUGIN_LOG=" + b.hooks}, "--procs", "2", "--interval",
		"1", "--max-bo", "1048576")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.WaitRounds(i, 1)
	}
	if err := c.Checkpoint(b.images); err != nil {
		t.Fatalf("%v\n%q", err, b.hookLines(""))
	}
	for len(b.Sim.State().Processes) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	before := []int{c.Round(0), c.Round(1)}
	if err := c.Restore(b.images); err != nil {
		t.Fatalf("%v\n%q", err, b.hookLines(""))
	}
	for i := range 2 {
		c.WaitRounds(i, before[i]+2)
	}
	b.noGPUErrors()
	if n := len(b.Sim.State().Processes); n != 2 {
		t.Errorf("%d processes use the gpus", n)
	}
	if got := b.hookLines("RESUME_DEVICES_LATE"); len(got) != 3 {
		t.Errorf("resumed: %q", got)
	}
}
