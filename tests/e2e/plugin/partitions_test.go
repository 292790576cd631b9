package plugin

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"os"
)

// mi300x is a machine of 8 devices in as many partitions each.
func mi300x(partitions uint32, firstID uint32) kfdsim.Options {
	o := kfdsim.Options{CPUNodes: 2}
	for i := range 8 * partitions {
		o.GPUs = append(o.GPUs, kfdsim.GPU{Model: "mi300x", Partitions: partitions, VRAM: 8 << 30 / uint64(partitions),
			ID: firstID + i, Hive: 7, NUMANode: int(i / (4 * partitions))})
	}
	return o
}

// Eight devices of two partitions each: dumped, restored, and restored onto others. A machine that is partitioned
// otherwise is refused, and told why.
func TestPartitions(t *testing.T) {
	b := newBench(t, mi300x(2, 100))
	app := b.StartApp(1, "--interval", "1", "--bos", "32", "--max-bo", "65536")
	b.dump(app)
	for _, firstID := range []uint32{100, 9000} {
		b.noHelpers()
		b.Replace(mi300x(2, firstID))
		b.restore()
		app.WaitRounds(1)
		b.noGPUErrors()
		if firstID == 100 {
			app.Kill()
			app.WaitGone()
		}
	}
	used := map[uint32]bool{}
	for _, q := range b.Sim.State().Processes[0].Queues {
		used[q.GPU] = true
	}
	if len(used) != 16 || used[100] {
		t.Errorf("queues on the GPUs %v", used)
	}
	app.Kill()
	app.WaitGone()
	b.noHelpers()
	for partitions, want := range map[uint32]string{1: "is a partition of 1/2",
		4: "a GPU of this host is a partition of 1/2"} {
		sys := t.TempDir() + "/sys"
		if err := kfdsim.WriteTopology(sys, mi300x(partitions, 100)); err != nil {
			t.Fatal(err)
		}
		host, err := topology.Parse(os.DirFS(sys))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Join(kfd.Check(b.set(), kfd.Host{Topology: host}, topology.Settings{}).Lines(), "\n")
		if !strings.Contains(lines, want) || !strings.Contains(lines, "amd-smi set --compute-partition") {
			t.Errorf("%d partitions: %s", partitions, lines)
		}
	}
}
