package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// config is one application.
type config struct {
	vram        uint64
	procs, gpus int
	// objects of 4 to 256 KiB have the VRAM; 0: one of each process on each GPU does.
	objects int
}

func (c config) String() string {
	if c.objects > 0 {
		return fmt.Sprintf("%d small buffer objects", c.objects)
	}
	return fmt.Sprintf("%s of VRAM, %d processes, %d GPUs", humanize.IBytes(c.vram), c.procs, c.gpus)
}

// each is the size of one process's buffer object on one GPU.
func (c config) each() uint64 { return c.vram / uint64(c.procs*c.gpus) &^ 4095 }

// name of the one checkpoint.
const name = "gpu"

// limit bounds every program that is run; they take seconds.
const limit = 5 * time.Minute

// machine is a simulated machine with a dumped application.
type machine struct {
	*stage
	*rig.Rig
	o                              options
	c                              config
	app                            *rig.Application
	program, plugin, store, images string
	criu                           string // a program that runs criu with the shim
	mounted, cleaning              bool
}

// measureConfig adds the times of one application to res.
func measureConfig(t *stage, o options, c config, res *table) {
	m := newMachine(t, o, c)
	for _, state := range o.states {
		m.times(state, res)
	}
	m.app.Kill()
	m.umount()
}

// newMachine dumps an application into a new store.
func newMachine(t *stage, o options, c config) *machine {
	gpus := make([]kfdsim.GPU, c.gpus)
	for i := range gpus {
		// The slack is for what the application has beside its large buffer objects.
		gpus[i] = kfdsim.GPU{Model: "mi50", VRAM: 8 << 30, DMARate: o.rate,
			Resident: (c.vram/uint64(c.gpus) + 128<<20) &^ 4095}
	}
	m := &machine{stage: t, Rig: rig.New(t, kfdsim.Options{GPUs: gpus}), o: o, c: c}
	m.store, m.images = filepath.Join(m.Dir, "store"), filepath.Join(m.Dir, "images")
	m.build()
	m.dump()
	return m
}

// measureSmall adds to res the times of an application with many small buffer objects, and of one whose single object
// is as large as all of these. They are restored in turns: how fast a machine is changes from minute to minute.
func measureSmall(ctx context.Context, o options, res *results) error {
	vram, own := smallBytes(o.small)
	t, err := newStage(ctx)
	if err != nil {
		return err
	}
	return t.play(func() {
		var both []*machine
		for _, c := range []config{{vram: vram, procs: 1, gpus: 1, objects: o.small}, {vram: vram, procs: 1, gpus: 1}} {
			fmt.Fprintf(os.Stderr, "%s\n", c)
			o.memory = 64 << 20
			if c.objects == 0 {
				o.memory += own // criu restores it beside the fill: so both have as much
			}
			m := newMachine(t, o, c)
			m.warm()
			both = append(both, m)
		}
		for range o.rounds {
			for _, m := range both {
				m.round(cached, parallel, &res.Small)
				m.end()
			}
		}
		for _, m := range both {
			m.app.Kill()
			m.umount()
		}
	})
}

// Of six buffer objects of the application one is its own memory, which is not filled.
func ofApplication(objects int) int { return objects * 6 / 5 }

const maxSmall = 256 << 10

// smallBytes is how much VRAM and system memory for the GPU an application with small buffer objects has, and how much
// memory of its own among them. Their sizes are those of item_size in tests/gpuapp.
func smallBytes(objects int) (vram, own uint64) {
	for i := range ofApplication(objects) {
		size := uint64(4096)
		for k := i % 24; k > 0 && size*2 <= maxSmall; k-- {
			size *= 2
		}
		if i%5 == 3 && size > 4096 {
			size -= 4096
		}
		if i%6 == 4 {
			own += size
		} else {
			vram += size
		}
	}
	return vram, own
}

func (m *machine) build() {
	m.must(os.Mkdir(m.images, 0o755))
	m.plugin = m.Built("gpucr-plugin", func(dir string) error {
		return exec.Command(filepath.Join(m.Root, "scripts/plugin.sh"), dir).Run()
	})
	m.program = filepath.Join(m.Built("gpucr-fs", func(dir string) error {
		cmd := exec.Command("go", "build", "-o", dir, "./cmd/gpucr-fs")
		cmd.Dir, cmd.Env = m.Root, append(os.Environ(), "CGO_ENABLED=0")
		return cmd.Run()
	}), "gpucr-fs")
	m.criu = filepath.Join(m.Dir, "criu")
	m.must(os.WriteFile(m.criu, fmt.Appendf(nil, "#!/bin/sh\nexport LD_PRELOAD=%s GPUCR_FS=%s\nexec %s \"$@\"\n",
		m.Shim, m.program, m.CRIU), 0o755))
}

// run runs a program where the devices are, and tells how long it took. Its output goes to a file: what it leaves
// running keeps nobody waiting.
func (m *machine) run(env []string, args ...string) time.Duration {
	if !m.cleaning {
		m.must(m.ctx.Err())
	}
	log := filepath.Join(m.Dir, "output")
	out, err := os.Create(log)
	m.must(err)
	defer out.Close()
	cmd := m.Command("env", append(env, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	begun := time.Now()
	m.must(cmd.Start())
	stop := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer stop.Stop()
	if !m.cleaning {
		defer context.AfterFunc(m.ctx, func() { cmd.Process.Kill() })()
	}
	err = cmd.Wait()
	took := time.Since(begun)
	if err != nil {
		text, _ := os.ReadFile(log)
		m.fail(fmt.Errorf("%v: %w: %s\n%s", args, err, text, rig.ErrorLines(filepath.Join(m.Dir, "work", "log"))))
	}
	return took
}

func (m *machine) mount(args ...string) {
	m.run(nil, append([]string{m.program, "--cache-size", m.o.cacheSize, "mount", m.store, m.images}, args...)...)
	m.mounted = true
}

func (m *machine) umount() {
	if m.mounted {
		m.mounted = false
		m.run(nil, m.program, "umount", m.images)
	}
}

// dump starts the application and dumps it into a new store.
func (m *machine) dump() {
	memory := m.o.memory
	if memory == 0 {
		memory = m.c.vram
	}
	args := []string{"--gpus", strconv.Itoa(m.c.gpus),
		"--memory", strconv.FormatUint(memory/uint64(m.c.procs)&^4095, 10)}
	if m.c.objects > 0 {
		args = append(args, "--bos", strconv.Itoa(ofApplication(m.c.objects)), "--max-bo", strconv.Itoa(maxSmall),
			"--interval", "1")
	} else {
		args = append(args, "--bos", strconv.Itoa(m.c.gpus), "--big-bo", strconv.FormatUint(m.c.each(), 10),
			"--interval", "100")
	}
	if m.c.objects > 0 {
		m.app = m.BeginApp(m.c.procs, args...)
	} else {
		m.app = m.StartApp(m.c.procs, args...)
	}
	m.run(nil, m.program, "init", m.store)
	m.Cleanup(func() {
		m.cleaning = true
		m.umount()
	})
	m.mount("--new", name)
	plugin := m.plugin
	if m.o.theirDump {
		plugin = m.o.upstream
	}
	m.run(nil, append([]string{m.criu, "dump", "-t", strconv.Itoa(m.app.PID)}, m.argsWith(plugin)...)...)
	m.app.WaitGone()
	m.run(nil, m.program, "seal", m.store, name)
	m.umount()
}

// args are criu's common ones.
func (m *machine) args() []string { return m.argsWith(m.plugin) }

func (m *machine) argsWith(plugin string) []string {
	work := filepath.Join(m.Dir, "work")
	m.must(os.MkdirAll(work, 0o755))
	return []string{"-D", m.images, "-W", work, "-L", plugin, "-o", "log"}
}

// times restores in every way with the images in one state.
func (m *machine) times(state string, res *table) {
	if state == cached {
		m.warm()
		defer m.umount()
	}
	for round := range m.o.rounds {
		for _, way := range m.o.ways {
			m.round(state, way, res)
			if round == 0 {
				m.app.WaitRounds(1)
			}
			m.end()
		}
	}
}

// warm mounts the checkpoint and brings its images into the page cache.
func (m *machine) warm() {
	m.mount("--checkpoint", name)
	m.restore(parallel)
	m.end()
}

// round restores once. The application runs then.
func (m *machine) round(state, way string, res *table) {
	_, err := measure.Freshen(int64(3 * m.c.vram))
	m.must(err)
	if state == cold && way != lazy && way != onDemand {
		m.umount()
		m.mount("--checkpoint", name)
	}
	if state == cold {
		m.must(measure.DropCaches())
	}
	requests := m.requests(requestsOfObject * m.c.objects)
	m.Sim.DMAStats(true)
	begun := time.Now()
	s := sample{Seconds: m.restore(way).Seconds(), Requests: requests}
	m.queuesRun()
	s.Ready = time.Since(begun).Seconds()
	for _, st := range m.Sim.DMAStats(false) {
		s.DMABytes += st.Bytes
		s.Busy = append(s.Busy, st.Busy.Seconds()/max(st.Span.Seconds(), 1e-9))
		s.Fill = max(s.Fill, st.Span.Seconds())
	}
	res.add(m.c, state, way, s)
	fmt.Fprintf(os.Stderr, "  %-6s %-10s %.3f s\n", state, way, s.Seconds)
}

// queuesRun waits until no queue stands still.
func (m *machine) queuesRun() {
	for late := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		still := 0
		for _, p := range m.Sim.State().Processes {
			still += p.Evictions
		}
		switch {
		case still == 0:
			return
		case time.Now().After(late):
			m.fail(fmt.Errorf("queues stand still for %v", limit))
		}
	}
}

// end ends the application, which must have met no fault of a GPU.
func (m *machine) end() {
	if errs := m.Sim.State().Errors; len(errs) > 0 {
		m.fail(fmt.Errorf("gpu errors: %+v", errs))
	}
	m.app.Kill()
	m.app.WaitGone()
}

func (m *machine) restore(way string) time.Duration {
	switch way {
	case onDemand:
		return m.run([]string{"GPUCR_PARALLEL=1"}, m.program, "--cache-size", m.o.cacheSize, "restore", "--vram=lazy",
			"--criu", m.criu, m.store, name, "--", "--libdir", m.plugin)
	case lazy:
		return m.run([]string{"GPUCR_PARALLEL=1"}, m.program, "--cache-size", m.o.cacheSize, "restore", "--criu",
			m.criu, m.store, name, "--", "--libdir", m.plugin)
	case upstream:
		return m.run(nil, append([]string{m.criu, "restore", "-d"}, m.argsWith(m.o.upstream)...)...)
	case sequential:
		return m.run([]string{"GPUCR_PARALLEL=0"}, append([]string{m.criu, "restore", "-d"}, m.args()...)...)
	default:
		return m.run([]string{"GPUCR_PARALLEL=1"}, append([]string{m.criu, "restore", "-d"}, m.args()...)...)
	}
}
