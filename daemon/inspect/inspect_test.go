package inspect

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/stats"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/tests/budget"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

// image frames messages as CRIU does.
func image(t testing.TB, magic uint32, messages ...proto.Message) []byte {
	t.Helper()
	var b []byte
	switch magic {
	case magicInventory:
	case magicStats:
		b = binary.LittleEndian.AppendUint32(b, magicService)
	default:
		b = binary.LittleEndian.AppendUint32(b, magicCommon)
	}
	b = binary.LittleEndian.AppendUint32(b, magic)
	for _, m := range messages {
		body, err := (proto.MarshalOptions{AllowPartial: true}).Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
		b = append(b, body...)
	}
	return b
}

func task(state uint32, comm string) proto.Message {
	return &criucore.CoreEntry{
		Mtype: criucore.CoreEntry_X86_64.Enum(),
		Tc:    &criucore.TaskCoreEntry{TaskState: &state, Comm: &comm},
	}
}

func pages(vaddr, n uint64, flags uint32) proto.Message {
	return &pagemap.PagemapEntry{Vaddr: &vaddr, CompatNrPages: proto.Uint32(0), NrPages: &n, Flags: &flags}
}

// family is a parent with a child and a zombie.
func family(t testing.TB, dir string) fstest.MapFS {
	t.Helper()
	u := proto.Uint32
	files := map[string][]byte{
		"inventory.img": image(
			t,
			magicInventory,
			&inventory.InventoryEntry{
				ImgVersion:   u(2),
				PluginsEntry: &inventory.PluginsEntry{Plugins: []string{"amdgpu_plugin"}},
			},
		),
		"pstree.img": image(t, magicPstree,
			&pstree.PstreeEntry{Pid: u(10), Ppid: u(0), Pgid: u(10), Sid: u(10), Threads: []uint32{10, 13}},
			&pstree.PstreeEntry{Pid: u(11), Ppid: u(10), Pgid: u(10), Sid: u(10), Threads: []uint32{11}},
			&pstree.PstreeEntry{Pid: u(12), Ppid: u(11), Pgid: u(10), Sid: u(10), Threads: []uint32{12}}),
		"core-10.img": image(t, magicCore, task(1, "server")),
		"core-11.img": image(t, magicCore, task(1, "worker")),
		"core-12.img": image(t, magicCore, task(6, "gone")),
		"mm-10.img": image(
			t, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{{Start: proto.Uint64(0x1000), End: proto.Uint64(0x9000)}}},
		),
		"mm-11.img": image(t, magicMM, &mm.MmEntry{}),
		"pagemap-10.img": image(
			t, magicPagemap, &pagemap.PagemapHead{PagesId: u(1)}, pages(0x1000, 2, flagPresent|flagLazy),
			pages(0x3000, 1, flagPresent), pages(0x4000, 4, flagParent),
		),
		"pagemap-11.img": image(t, magicPagemap, &pagemap.PagemapHead{PagesId: u(2)}),
		"stats-dump": image(
			t,
			magicStats,
			&stats.StatsEntry{Dump: &stats.DumpStatsEntry{FrozenTime: u(1500), PagesWritten: proto.Uint64(3)}},
		),
	}
	m := fstest.MapFS{}
	for name, b := range files {
		m[filepath.Join(dir, name)] = &fstest.MapFile{Data: b}
	}
	return m
}

func TestRead(t *testing.T) {
	for _, dir := range []string{".", "checkpoint"} {
		fsys := family(t, dir)
		found, ok := Find(fsys)
		if !ok || found != dir {
			t.Fatalf("found %q, %v", found, ok)
		}
		r, err := Read(fsys, found)
		if err != nil {
			t.Fatal(err)
		}
		if r.ImageVersion != 2 || r.Arch != "X86_64" || len(r.Plugins) != 1 || r.Dump == nil ||
			r.Dump.Frozen.Microseconds() != 1500 ||
			r.Dump.PagesWritten != 3 {
			t.Errorf("%+v", r)
		}
		if len(r.Processes) != 1 || len(r.Processes[0].Children) != 1 || len(r.Processes[0].Children[0].Children) != 1 {
			t.Fatalf("the tree is %+v", r.Processes)
		}
		p := r.Processes[0]
		want := Memory{
			Mapped:  0x8000,
			VMAs:    1,
			Present: 3 * pageSize,
			Lazy:    2 * pageSize,
			Parent:  4 * pageSize,
			Pages:   filepath.Join(dir, "pages-1.img"),
		}
		if p.Comm != "server" || len(p.Threads) != 2 || p.State != "Alive" || *p.Memory != want {
			t.Errorf("%+v, memory %+v", p, p.Memory)
		}
		if z := p.Children[0].Children[0]; z.Comm != "gone" || z.Memory != nil {
			t.Errorf("the zombie is %+v", z)
		}
		if r.Total.Present != want.Present || r.Total.Parent != want.Parent {
			t.Errorf("total %+v", r.Total)
		}
	}
}

func TestNoImages(t *testing.T) {
	if dir, ok := Find(fstest.MapFS{"a": {}}); ok {
		t.Errorf("found images in %q", dir)
	}
}

// TestDamaged cuts every image at every byte and flips every bit of its head; the error names the image.
func TestDamaged(t *testing.T) {
	whole := family(t, ".")
	for name, file := range whole {
		for cut := range file.Data {
			damaged := family(t, ".")
			damaged[name] = &fstest.MapFile{Data: file.Data[:cut]}
			_, err := Read(damaged, ".")
			// A list that ends after a whole entry is a shorter list; CRIU's images have no count.
			if err == nil && !strings.HasPrefix(name, "p") {
				t.Errorf("%s cut to %d bytes was accepted", name, cut)
			}
			if err != nil && !strings.Contains(err.Error(), name) && name != "pstree.img" {
				t.Errorf("%s cut to %d bytes: the error names another: %v", name, cut, err)
			}
		}
		for bit := range 32 {
			damaged := family(t, ".")
			b := append([]byte{}, file.Data...)
			b[bit/8] ^= 1 << (bit % 8)
			damaged[name] = &fstest.MapFile{Data: b}
			if _, err := Read(damaged, "."); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s with a wrong magic: %v", name, err)
			}
		}
	}
	for _, name := range []string{"pstree.img", "core-11.img", "mm-10.img", "pagemap-10.img"} {
		missing := family(t, ".")
		delete(missing, name)
		if _, err := Read(missing, "."); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	// What only adds detail may be missing.
	delete(whole, "stats-dump")
	if r, err := Read(whole, "."); err != nil || r.Dump != nil {
		t.Errorf("without statistics: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for name, file := range family(f, ".") {
		f.Add(name, file.Data)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		defer budget.Watch(t, len(data))()
		fsys := family(t, ".")
		fsys[name] = &fstest.MapFile{Data: data}
		r, err := Read(fsys, ".")
		if err != nil {
			return
		}
		n := 0
		var walk func([]*Process)
		walk = func(list []*Process) {
			for _, p := range list {
				if n++; n > maxProcesses {
					t.Fatal("the tree is endless")
				}
				walk(p.Children)
			}
		}
		walk(r.Processes)
	})
}

// criu gives the program, as make criu puts it there.
func criu(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build/criu/criu")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no criu: %v; run make criu", err)
	}
	return p
}

// TestRealDump reads what criu wrote of a process with threads, a child and known memory.
func TestRealDump(t *testing.T) {
	dir := t.TempDir()
	bin, err := workload.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := workload.Start(bin, dir, "--mem", "16", "--child-mem", "4", "--threads", "3")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	images := filepath.Join(dir, "images")
	if err := os.Mkdir(images, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(criu(t), "dump", "-t", strconv.Itoa(p.PID),
		"-D", images, "--leave-running").CombinedOutput(); err != nil {
		t.Fatalf("criu dump: %v\n%s", err, out)
	}
	r, err := Read(os.DirFS(images), ".")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Processes) != 1 || len(r.Processes[0].Children) != 1 {
		t.Fatalf("tree %+v", r.Processes)
	}
	parent, child := r.Processes[0], r.Processes[0].Children[0]
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID))
	if err != nil || fmt.Sprint(child.PID) != strings.TrimSpace(string(status)) {
		t.Errorf("child %d, the kernel says %s (%v)", child.PID, status, err)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	if err != nil || len(threads) != len(parent.Threads) || int(parent.PID) != p.PID {
		t.Errorf("%d threads of %d, the kernel has %d of %d", len(parent.Threads), parent.PID, len(threads), p.PID)
	}
	if parent.Comm != "workload" || parent.Exe != bin || parent.State != "Alive" {
		t.Errorf("the process is %+v", parent)
	}
	var stored int64
	for _, q := range []*Process{parent, child} {
		st, err := os.Stat(filepath.Join(images, q.Memory.Pages))
		if err != nil {
			t.Fatal(err)
		}
		stored += st.Size()
		if int64(q.Memory.Present) != st.Size() || q.Memory.Lazy > q.Memory.Present ||
			q.Memory.Mapped < q.Memory.Present {
			t.Errorf("memory %+v, %s has %d bytes", q.Memory, q.Memory.Pages, st.Size())
		}
	}
	if parent.Memory.Lazy < 16<<20 || int64(r.Total.Present) != stored {
		t.Errorf("memory %+v, total %+v", parent.Memory, r.Total)
	}
	if r.Dump == nil || r.Dump.PagesWritten == 0 || r.Dump.Frozen == 0 {
		t.Errorf("dump %+v", r.Dump)
	}
}
