package plugin

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

var peers = flag.String("peers", "",
	"CRIU:DIR[,CRIU:DIR...]: programs of criu to dump and restore with, each with the folder of its amdgpu_plugin.so")

// peer is a criu with the plugins that it takes. Without -peers it is the criu of all tests, and has ours alone.
type peer struct {
	name         string
	criu         string
	hooks        int
	ours, theirs string // folders; theirs may be ""
}

// later says that it is a criu of the development branch after 4.2.
func (p *peer) later() bool { return p.hooks > 13 }

// newPeers are those that -peers names.
func newPeers(t *testing.T) (out []*peer) {
	t.Helper()
	if *peers == "" {
		return []*peer{{name: "criu", hooks: 13}}
	}
	for s := range strings.SplitSeq(*peers, ",") {
		criu, dir, ok := strings.Cut(s, ":")
		if !ok {
			t.Fatalf("-peers: %q is not CRIU:DIR", s)
		}
		hooks, err := hooksOf(filepath.Join(dir, "amdgpu_plugin.so"))
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{name: "criu 4.2", criu: criu, hooks: hooks, theirs: dir}
		if p.later() {
			p.name = "criu after 4.2"
		}
		out = append(out, p)
	}
	return out
}

// hooksOf is how many hooks the criu has that a plugin was built for.
func hooksOf(plugin string) (int, error) {
	f, err := elf.Open(plugin)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", plugin, err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", plugin, err)
	}
	for _, s := range symbols {
		if s.Name != "CR_PLUGIN_DESC" || int(s.Section) >= len(f.Sections) {
			continue
		}
		const at = 28 // of max_hooks
		var b [4]byte
		section := f.Sections[s.Section]
		if _, err := section.ReadAt(b[:], int64(s.Value-section.Addr+at)); err != nil {
			return 0, fmt.Errorf("%s: %w", plugin, err)
		}
		return int(binary.NativeEndian.Uint32(b[:])), nil
	}
	return 0, fmt.Errorf("%s is no plugin of criu", plugin)
}

// bench is a machine with a peer's criu.
func (p *peer) bench(t *testing.T, opts kfdsim.Options) *bench {
	t.Helper()
	b := newBench(t, opts)
	b.CRIU = cmp.Or(p.criu, b.CRIU)
	p.ours = b.Built("plugin-"+strconv.Itoa(p.hooks), func(dir string) error {
		return output(exec.Command(filepath.Join(b.Root, "scripts/plugin.sh"), dir, strconv.Itoa(p.hooks)))
	})
	return b
}

// use has the next run of criu take a plugin. CRIU's own after 4.2 looks for images in the folder where criu works.
func (b *bench) use(p *peer, who string) {
	b.plugin, b.inImages = p.ours, false
	if who == "theirs" {
		b.plugin, b.inImages = p.theirs, p.later()
	}
}

// ways are who dumps and who restores.
func (p *peer) ways() [][2]string {
	if p.theirs == "" {
		return [][2]string{{"ours", "ours"}}
	}
	return [][2]string{{"ours", "ours"}, {"theirs", "ours"}, {"ours", "theirs"}, {"theirs", "theirs"}}
}

// shape is an application, and a machine for it.
type shape struct {
	name  string
	procs int
	gpus  []kfdsim.GPU
	onto  []kfdsim.GPU // of the machine that it is restored on; nil: the same
	store bool         // images in the mount of a store
	args  []string
	later bool // CRIU's own plugin has it after 4.2 only
}

func shapes() (out []shape) {
	for _, store := range []bool{false, true} {
		for _, procs := range []int{1, 2} {
			for _, gpus := range []int{1, 2} {
				where := "folder"
				if store {
					where = "store"
				}
				out = append(out, shape{name: fmt.Sprintf("%d processes, %d GPUs, %s", procs, gpus, where),
					procs: procs, gpus: make([]kfdsim.GPU, gpus), store: store})
			}
		}
	}
	one, two := make([]kfdsim.GPU, 1), []kfdsim.GPU{{ID: 1001}, {ID: 1002}}
	return append(out,
		shape{name: "own event page", procs: 1, gpus: []kfdsim.GPU{{Model: "mi210"}},
			args: []string{"--own-event-page"}},
		shape{name: "several dies", procs: 1, gpus: []kfdsim.GPU{{Model: "mi300x"}}},
		shape{name: "a hive", procs: 1, gpus: []kfdsim.GPU{{Hive: 3}, {Hive: 3}}},
		shape{name: "other GPUs", procs: 2, gpus: two, onto: []kfdsim.GPU{{ID: 2001, RenderMinor: 130, VRAM: 8 << 30},
			{ID: 2002, RenderMinor: 131, VRAM: 8 << 30}}},
		shape{name: "dma-bufs that are open", procs: 2, gpus: one, args: []string{"--keep-dmabuf"}, later: true},
		shape{name: "an object of a render node, exported and imported", procs: 2, gpus: one, args: []string{object},
			later: true},
		shape{name: "an object, and its dma-buf", procs: 2, gpus: one, args: []string{object, "--keep-dmabuf"},
			later: true},
		shape{name: "an object of the KFD, imported, and its dma-buf", procs: 2, gpus: one,
			args: []string{object, "--render-kfd", "--keep-dmabuf"}, later: true},
		shape{name: "an object held by a dma-buf alone", procs: 2, gpus: one, args: []string{object, "--dmabuf-alone"},
			later: true},
	)
}

// Images of our plugin and of CRIU's own, of two versions of it, are restored by both. Ours has to restore all; where
// CRIU's fails, that is told. Who restores checks every buffer object against what was dumped.
func TestMatrix(t *testing.T) {
	for _, p := range newPeers(t) {
		type count struct{ restored, of int }
		counts := map[[2]string]*count{}
		for _, s := range shapes() {
			for _, way := range p.ways() {
				if s.later && !p.later() && way != [2]string{"ours", "ours"} {
					continue // what that version does not know
				}
				if counts[way] == nil {
					counts[way] = &count{}
				}
				t.Run(fmt.Sprintf("%s/%s/%s to %s", p.name, s.name, way[0], way[1]), func(t *testing.T) {
					counts[way].of++
					switch err := p.dumpAndRestore(t, s, way); {
					case err == nil:
						counts[way].restored++
					case way == [2]string{"ours", "ours"} || way[1] == "ours" && !untold(err):
						t.Error(err)
					default:
						t.Logf("CRIU's own plugin: %v", err)
					}
				})
			}
		}
		for _, way := range p.ways() {
			c := counts[way]
			t.Logf("%s: dumped by %s, restored by %s: %d of %d", p.name, way[0], way[1], c.restored, c.of)
		}
	}
}

// untold says that it is for the images of CRIU's plugin that they cannot be restored.
func untold(err error) bool {
	return errors.Is(err, errTheirDump) || strings.Contains(err.Error(), "which is meant cannot be told")
}

var errTheirDump = errors.New("CRIU's plugin does not dump it")

func (p *peer) dumpAndRestore(t *testing.T, s shape, way [2]string) error {
	b := p.bench(t, kfdsim.Options{GPUs: s.gpus})
	var store string
	if s.store {
		store = b.mounted()
	}
	app := b.StartApp(s.procs, append([]string{"--interval", "1", "--bos", "20", "--max-bo", "262144"}, s.args...)...)
	b.use(p, way[0])
	if err := b.criu("dump", "-t", strconv.Itoa(app.PID)); err != nil {
		if way[0] == "theirs" {
			return fmt.Errorf("%w: %w", errTheirDump, err)
		}
		return err
	}
	app.WaitGone()
	b.noHelpers()
	b.WaitVRAMFree()
	if s.store {
		b.gpucr("seal", store, "gpu")
	}
	if s.onto != nil {
		b.Replace(kfdsim.Options{GPUs: s.onto, CheckFills: true})
	}
	b.use(p, way[1])
	err := b.criu("restore", "-d")
	if err == nil {
		err = goesOn(app, s.procs)
	}
	if errs := b.Sim.State().Errors; len(errs) > 0 {
		err = errors.Join(err, fmt.Errorf("gpu errors: %+v", errs))
	}
	app.Kill()
	app.WaitGone()
	b.noHelpers()
	return err
}

// goesOn waits until every process has verified all that it has on its GPUs.
func goesOn(app *rig.Application, procs int) error {
	for i := range procs {
		_, begun, err := app.Status(i)
		for late := time.Now().Add(time.Minute); err == nil; time.Sleep(10 * time.Millisecond) {
			var round int
			if _, round, err = app.Status(i); round > begun+1 {
				break
			}
			if time.Now().After(late) {
				return fmt.Errorf("process %d stands at round %d", i, round)
			}
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", i, err)
		}
	}
	return nil
}

// The switches of CRIU's plugin do the same with ours: a host that differs in what a check looks at is refused, and
// taken where the check is waived, whatever way that is written.
func TestMatrixSwitches(t *testing.T) {
	pair := []kfdsim.GPU{{NUMANode: 0}, {NUMANode: 1}}
	with := func(name string, val uint64) []kfdsim.GPU {
		return []kfdsim.GPU{{Properties: map[string]uint64{name: val}}}
	}
	mi50 := kfdsim.Models["mi50"]
	for _, tc := range []struct {
		name    string
		on      []kfdsim.GPU
		onto    []kfdsim.GPU
		refused bool              // where nothing is set
		values  map[string]string // and what is to become of them: "" for no opinion beside CRIU's
	}{
		{"KFD_FW_VER_CHECK", []kfdsim.GPU{{FirmwareVersion: 500}}, []kfdsim.GPU{{FirmwareVersion: 499}}, true,
			map[string]string{"no": "restored", "NO": "restored", "No": "restored", "YES": "refused",
				"false": "refused", "off": "refused", "00": "refused", "2": "refused"}},
		{"KFD_SDMA_FW_VER_CHECK", []kfdsim.GPU{{SDMAFirmwareVersion: 500}}, []kfdsim.GPU{{SDMAFirmwareVersion: 499}},
			true, nil},
		{"KFD_CACHES_COUNT_CHECK", []kfdsim.GPU{{}}, with("caches_count", uint64(mi50.Caches)-1), true, nil},
		{"KFD_NUM_GWS_CHECK", with("num_gws", 64), with("num_gws", 32), true, nil},
		{"KFD_VRAM_SIZE_CHECK", []kfdsim.GPU{{VRAM: 2 << 30}}, []kfdsim.GPU{{VRAM: 1 << 30}}, true, nil},
		{"KFD_NUMA_CHECK", pair, []kfdsim.GPU{{NUMANode: 0}, {NUMANode: 0}}, true, nil},
		{"KFD_CAPABILITY_CHECK", []kfdsim.GPU{{}}, with("capability", uint64(mi50.Capability)^1<<4), true, nil},
		{"KFD_MAX_BUFFER_SIZE", []kfdsim.GPU{{}}, []kfdsim.GPU{{}}, false,
			map[string]string{"4096": "restored", "010000": "restored", "16M": "restored", "0": "restored"}},
	} {
		for _, p := range newPeers(t) {
			t.Run(p.name+"/"+tc.name, func(t *testing.T) {
				b := p.bench(t, kfdsim.Options{GPUs: tc.on, CPUNodes: 2})
				app := b.StartApp(1, "--interval", "1", "--bos", "8", "--max-bo", "65536")
				ways := p.ways()
				b.use(p, ways[len(ways)-1][0])
				b.dump(app)
				b.WaitVRAMFree()
				b.Replace(kfdsim.Options{GPUs: tc.onto, CPUNodes: 2, CheckFills: true})
				outcome := func(who, value string) string {
					b.use(p, who)
					b.env = nil
					if value != "" {
						b.env = []string{tc.name + "=" + value}
					}
					err := b.criu("restore", "-d")
					if err != nil {
						app.WaitGone()
						return "refused"
					}
					b.noHelpers()
					app.Kill()
					app.WaitGone()
					return "restored"
				}
				want := map[string]string{"": "restored"}
				if tc.refused {
					want = map[string]string{"": "refused", "0": "restored", "1": "refused"}
				}
				for v, w := range tc.values {
					want[v] = w
				}
				for value, want := range want {
					if got := outcome("ours", value); got != want {
						t.Errorf("%s=%s: %s", tc.name, value, got)
					}
					if p.theirs == "" {
						continue
					}
					if got := outcome("theirs", value); got != want {
						t.Errorf("%s=%s: CRIU's own plugin has %s it", tc.name, value, got)
					}
				}
				t.Logf("%d values", len(want))
			})
		}
	}
}

// The number of hooks is read from the plugin itself.
func TestHooksOfPlugin(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	if n, err := hooksOf(filepath.Join(b.plugin, "gpucr_plugin.so")); err != nil || n != 13 {
		t.Errorf("%d hooks, %v", n, err)
	}
	if _, err := hooksOf(os.Args[0]); err == nil {
		t.Error("a program that is no plugin has hooks")
	}
}
