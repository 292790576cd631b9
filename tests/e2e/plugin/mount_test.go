package plugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// gpucr runs gpucr-fs where the devices are.
func (b *bench) gpucr(args ...string) {
	b.T.Helper()
	if err := b.start(b.Command(b.program, args...)).wait(); err != nil {
		b.T.Fatal(err)
	}
}

// mounted makes a store and mounts a new checkpoint of it at b.images, until the
// test ends.
func (b *bench) mounted() (store string) {
	b.T.Helper()
	store = filepath.Join(b.Dir, "store")
	b.gpucr("init", store)
	b.daemonsEnd(store)
	b.gpucr("mount", "--new", "gpu", store, b.images)
	b.T.Cleanup(func() {
		// The application may have gone on to use the mount.
		if err := b.start(b.Command(b.program, "umount", b.images)).wait(); err != nil {
			b.T.Error(err)
		}
	})
	return store
}

// Dumped through the mount, sealed, restored from it.
func TestThroughTheMount(t *testing.T) {
	for _, tc := range []struct {
		name  string
		procs int
		gpus  []kfdsim.GPU
		args  []string
	}{
		{"two processes", 2, []kfdsim.GPU{{Hive: 3}, {Hive: 3}}, []string{"--bos", "66", "--max-bo", "2097152"}},
		{"one BO of 512 MiB", 1, []kfdsim.GPU{{}}, []string{"--bos", "3", "--big-bo", "536870912"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: tc.gpus})
			store := b.mounted()
			app := b.StartApp(tc.procs, append(tc.args, "--interval", "1")...)
			b.dump(app)
			b.gpucr("seal", store, "gpu")
			b.gpucr("verify", store)
			b.gpucr("check", "--criu", b.CRIU, store, "gpu")
			b.restore()
			app.WaitRounds(1)
			b.noHelpers()
			b.noGPUErrors()
			app.Kill()
			log, err := os.ReadFile(filepath.Join(store, "daemon.log"))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(log), "filled buffer objects"); n != tc.procs {
				t.Errorf("the daemon filled %d processes, not %d; its log:\n%s", n, tc.procs, log)
			}
		})
	}
}

// A process restored on other GPUs keeps the ids it knows, in a second dump too.
func TestOtherGPUs(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{ID: 1001}, {ID: 1002}}})
	app := b.StartApp(2, "--interval", "1", "--max-bo", "262144")
	b.dump(app)
	first := b.set()
	b.Replace(kfdsim.Options{GPUs: []kfdsim.GPU{
		{ID: 2001, RenderMinor: 130, VRAM: 8 << 30}, {ID: 2002, RenderMinor: 131, VRAM: 8 << 30}}})
	b.restore()
	app.WaitRounds(1)
	b.noGPUErrors()
	for _, bo := range b.Sim.BOs(false) {
		if bo.UserID != bo.GPU-1000 {
			t.Fatalf("bo on gpu %d is on gpu %d for the process", bo.GPU, bo.UserID)
		}
	}
	b.images = filepath.Join(b.Dir, "again")
	if err := os.Mkdir(b.images, 0o755); err != nil {
		t.Fatal(err)
	}
	b.dump(app)
	again := b.set()
	for i, n := range again.RenderNodes {
		if got, want := n.Message.GetGpuId(), first.RenderNodes[i].Message.GetGpuId(); got != want {
			t.Errorf("%s: gpu %d, %d at first", n.Name, got, want)
		}
	}
	b.restore()
	app.WaitRounds(1)
	app.Kill()
}

// gpucr-fs dump and restore drive criu with the plugin, and the plugin this very
// gpucr-fs, without being told.
func TestCommands(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	store := filepath.Join(b.Dir, "store")
	b.gpucr("init", store)
	b.daemonsEnd(store)
	app := b.StartApp(2, "--interval", "1", "--bos", "20", "--max-bo", "262144")
	run := func(args ...string) {
		t.Helper()
		if err := b.start(b.Command("env",
			append([]string{"LD_PRELOAD=" + b.Shim, b.program}, args...)...)).wait(); err != nil {
			t.Fatal(err)
		}
	}
	if dir, err := exec.Command(b.program, "plugin-dir").Output(); err != nil ||
		strings.TrimSpace(string(dir)) != b.plugin {
		t.Errorf("plugin-dir printed %q, %v", dir, err)
	}
	run("dump", "--criu", b.CRIU, "-t", strconv.Itoa(app.PID), store, "gpu")
	app.WaitGone()
	run("restore", "--criu", b.CRIU, "--wait", "--verify-vram", store, "gpu")
	app.WaitRounds(1)
	log, err := os.ReadFile(filepath.Join(store, "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	filled := regexp.MustCompile(`filled buffer objects.* bytes=(\d+) .* verified=(\d+)`).
		FindAllStringSubmatch(string(log), -1)
	for _, m := range filled {
		if m[1] != m[2] {
			t.Errorf("%s of %s bytes were read back", m[2], m[1])
		}
	}
	if len(filled) != 2 {
		t.Errorf("the daemon filled %d processes, not 2; its log:\n%s", len(filled), log)
	}
	b.noHelpers()
	b.noGPUErrors()
	app.Kill()
}
