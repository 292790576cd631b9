package plugin

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

// In a container's namespaces, through the mount.
func TestContainer(t *testing.T) {
	t.Run("the same", func(t *testing.T) { testContainer(t, func(*rig.Container) {}) })
	// A render node is what it is, whatever a container calls it.
	t.Run("other names of the render nodes", func(t *testing.T) { testContainer(t, (*rig.Container).SwapNodes) })
}

// testContainer changes a container between its dump and its restore.
func testContainer(t *testing.T, change func(*rig.Container)) {
	b := newBench(t, kfdsim.Options{})
	store := b.mounted()
	c := b.NewContainer([]string{"CRIU_LIBS_DIR=" + b.plugin, "GPUCR_FS=" + b.program}, "--procs", "2", "--interval",
		"1", "--max-bo", "262144")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.WaitRounds(i, 1)
	}
	if err := c.Checkpoint(b.images); err != nil {
		t.Fatal(err)
	}
	b.gpucr("seal", store, "gpu")
	for deadline := time.Now().Add(time.Minute); len(b.Sim.State().Processes) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes left after the checkpoint: %+v", b.Sim.State().Processes)
		}
	}
	change(c)
	before := []int{c.Round(0), c.Round(1)}
	if err := c.Restore(b.images); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.WaitRounds(i, before[i]+2)
	}
	b.noHelpers()
	b.noGPUErrors()
	if n := len(b.Sim.State().Processes); n != 2 {
		t.Errorf("%d processes use the gpus", n)
	}
}
