package criuimg

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

func image(t testing.TB, magic uint32, entries ...proto.Message) *fstest.MapFile {
	t.Helper()
	var b []byte
	if magic != magicInventory {
		b = binary.LittleEndian.AppendUint32(b, magicCommon)
	}
	b = binary.LittleEndian.AppendUint32(b, magic)
	for _, e := range entries {
		p, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return &fstest.MapFile{Data: b}
}

func inventoryImage(t testing.TB) *fstest.MapFile {
	return image(t, magicInventory, &inventory.InventoryEntry{ImgVersion: proto.Uint32(2),
		PluginsEntry: &inventory.PluginsEntry{Plugins: []string{"amdgpu_plugin"}}})
}

func task(pid, ppid uint32) *pstree.PstreeEntry {
	return &pstree.PstreeEntry{Pid: &pid, Ppid: &ppid, Pgid: &pid, Sid: &pid, Threads: []uint32{pid, pid + 1000}}
}

func mmImage(t testing.TB, vmas ...*vma.VmaEntry) *fstest.MapFile { return mmImageOf(t, 1, vmas...) }

func mmImageOf(t testing.TB, exe uint32, vmas ...*vma.VmaEntry) *fstest.MapFile {
	z := proto.Uint64(0)
	return image(t, magicMM, &mm.MmEntry{MmStartCode: z, MmEndCode: z, MmStartData: z, MmEndData: z,
		MmStartStack: z, MmStartBrk: z, MmBrk: z, MmArgStart: z, MmArgEnd: z, MmEnvStart: z, MmEnvEnd: z,
		ExeFileId: &exe, Vmas: vmas})
}

func anon(startPage, endPage uint64) *vma.VmaEntry {
	return &vma.VmaEntry{Start: proto.Uint64(startPage * PageSize), End: proto.Uint64(endPage * PageSize),
		Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: proto.Uint32(3),
		Flags: proto.Uint32(mapPrivate | mapAnonymous), Status: proto.Uint32(513), Fd: proto.Int64(-1)}
}

func pe(page, n uint64, flags uint32) *pagemap.PagemapEntry {
	return &pagemap.PagemapEntry{Vaddr: proto.Uint64(page * PageSize), CompatNrPages: proto.Uint32(0),
		Flags: &flags, NrPages: &n}
}

func pagemapImage(t testing.TB, id uint32, entries ...*pagemap.PagemapEntry) *fstest.MapFile {
	all := []proto.Message{&pagemap.PagemapHead{PagesId: &id}}
	for _, e := range entries {
		all = append(all, e)
	}
	return image(t, magicPagemap, all...)
}

func pageRange(start, end uint64, file string, offPage int64) Range {
	return Range{Start: start * PageSize, End: end * PageSize, File: file, Off: offPage * PageSize,
		Parent: strings.HasPrefix(file, "parent/")}
}

func TestLoad(t *testing.T) {
	fsys := fstest.MapFS{
		"inventory.img": inventoryImage(t),
		"pstree.img":    image(t, magicPstree, task(7, 0), task(8, 7)),
		"mm-7.img":      mmImage(t, anon(16, 20), anon(20, 32), anon(64, 80)),
		"pagemap-7.img": pagemapImage(t, 3,
			pe(16, 2, pePresent),        // eager: only moves the offset
			pe(18, 6, pePresent|peLazy), // crosses the boundary at 20
			pe(24, 2, peParent),         // a hole, restored by criu itself
			pe(64, 16, pePresent|peLazy)),
	}
	c, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Plugins, []string{"amdgpu_plugin"}) {
		t.Errorf("plugins %v", c.Plugins)
	}
	if len(c.Tasks) != 2 || c.Tasks[0].PID != 7 || c.Tasks[1].PPID != 7 || c.Tasks[0].Threads != 2 {
		t.Fatalf("tasks %+v", c.Tasks)
	}
	if !c.Tasks[1].Dead || c.Tasks[0].Dead {
		t.Error("the task without memory is the dead one")
	}
	want := []Range{
		pageRange(18, 20, "pages-3.img", 2),
		pageRange(20, 24, "pages-3.img", 4),
		pageRange(64, 80, "pages-3.img", 8),
	}
	if got := c.Tasks[0].Ranges; !reflect.DeepEqual(got, want) {
		t.Errorf("ranges\n got %+v\nwant %+v", got, want)
	}
	if n := c.Tasks[0].LazyBytes(); n != 22*PageSize {
		t.Errorf("%d lazy bytes", n)
	}
}

// The entries of old dumps have neither flags nor the 64-bit count.
func TestLoadCompatEntries(t *testing.T) {
	old := func(page uint64, n uint32, inParent bool) *pagemap.PagemapEntry {
		return &pagemap.PagemapEntry{Vaddr: proto.Uint64(page * PageSize), CompatNrPages: &n, InParent: &inParent}
	}
	fsys := fstest.MapFS{
		"inventory.img":        inventoryImage(t),
		"pstree.img":           image(t, magicPstree, task(7, 0)),
		"mm-7.img":             mmImage(t, anon(0, 64)),
		"pagemap-7.img":        pagemapImage(t, 1, old(1, 4, false), old(5, 2, true), pe(8, 1, peLazy|pePresent)),
		"parent/pagemap-7.img": pagemapImage(t, 9, old(5, 2, false)),
	}
	c, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Range{pageRange(8, 9, "pages-1.img", 4)}; !reflect.DeepEqual(c.Tasks[0].Ranges, want) {
		t.Errorf("got %+v", c.Tasks[0].Ranges)
	}
}

func TestParentChain(t *testing.T) {
	fsys := fstest.MapFS{
		"inventory.img": inventoryImage(t),
		"pstree.img":    image(t, magicPstree, task(7, 0)),
		"mm-7.img":      mmImage(t, anon(0, 64)),
		"pagemap-7.img": pagemapImage(t, 1, pe(0, 2, pePresent|peLazy), pe(2, 10, peParent|peLazy)),
		"parent/pagemap-7.img": pagemapImage(t, 5,
			pe(2, 2, pePresent), pe(4, 4, peParent), pe(8, 20, pePresent)),
		"parent/parent/pagemap-7.img": pagemapImage(t, 1, pe(0, 64, pePresent)),
	}
	c, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	want := []Range{
		pageRange(0, 2, "pages-1.img", 0),
		pageRange(2, 4, "parent/pages-5.img", 0),
		pageRange(4, 8, "parent/parent/pages-1.img", 4),
		pageRange(8, 12, "parent/pages-5.img", 2),
	}
	if got := c.Tasks[0].Ranges; !reflect.DeepEqual(got, want) {
		t.Errorf("ranges\n got %+v\nwant %+v", got, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := func() fstest.MapFS {
		return fstest.MapFS{
			"inventory.img": inventoryImage(t),
			"pstree.img":    image(t, magicPstree, task(7, 0)),
			"mm-7.img":      mmImage(t, anon(0, 64)),
			"pagemap-7.img": pagemapImage(t, 1, pe(0, 4, pePresent|peLazy)),
		}
	}
	for name, c := range map[string]struct {
		file string
		img  *fstest.MapFile
		want error
	}{
		"no inventory": {"inventory.img", nil, fs.ErrNotExist},
		"no pagemap":   {"pagemap-7.img", nil, fs.ErrNotExist},
		"wrong magic":  {"pstree.img", image(t, 0x55053847, task(7, 0)), ErrCorrupt},
		"no magic":     {"pstree.img", &fstest.MapFile{Data: []byte("hello, world")}, ErrCorrupt},
		"short header": {"pstree.img", &fstest.MapFile{Data: []byte{1, 2}}, ErrCorrupt},
		"no tasks":     {"pstree.img", image(t, magicPstree), ErrCorrupt},
		"task twice":   {"pstree.img", image(t, magicPstree, task(7, 0), task(7, 0)), ErrCorrupt},
		"pid 0":        {"pstree.img", image(t, magicPstree, task(0, 0)), ErrCorrupt},
		"lying size": {"pstree.img",
			&fstest.MapFile{Data: append(image(t, magicPstree).Data, 0xff, 0xff, 0xff, 0x02, 1)}, ErrCorrupt},
		"huge size": {"pstree.img",
			&fstest.MapFile{Data: append(image(t, magicPstree).Data, 0xff, 0xff, 0xff, 0xff, 1)}, ErrCorrupt},
		"half a size": {"pstree.img", &fstest.MapFile{Data: append(image(t, magicPstree).Data, 1, 0)},
			ErrCorrupt},
		"bad protobuf": {"pstree.img",
			&fstest.MapFile{Data: append(image(t, magicPstree).Data, 1, 0, 0, 0, 0xff)}, ErrCorrupt},
		"vmas overlap":       {"mm-7.img", mmImage(t, anon(0, 64), anon(63, 70)), ErrCorrupt},
		"empty vma":          {"mm-7.img", mmImage(t, anon(4, 4)), ErrCorrupt},
		"lazy outside a vma": {"pagemap-7.img", pagemapImage(t, 1, pe(63, 4, pePresent|peLazy)), ErrCorrupt},
		"pages out of order": {"pagemap-7.img", pagemapImage(t, 1, pe(8, 4, pePresent), pe(0, 4, pePresent)),
			ErrCorrupt},
		"pages overlap": {"pagemap-7.img", pagemapImage(t, 1, pe(0, 4, pePresent), pe(3, 4, pePresent)),
			ErrCorrupt},
		"pages wrap":          {"pagemap-7.img", pagemapImage(t, 1, pe(8, 1<<60, pePresent)), ErrCorrupt},
		"parent without link": {"pagemap-7.img", pagemapImage(t, 1, pe(8, 1, peParent|peLazy)), ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := good()
			if _, err := Load(fsys); err != nil {
				t.Fatalf("the unspoilt images: %v", err)
			}
			if c.img == nil {
				delete(fsys, c.file)
			} else {
				fsys[c.file] = c.img
			}
			if _, err := Load(fsys); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// Pages of a dump made with criu dump --lazy-pages never reached the disk.
func TestLoadRefusesPagesLeftBehind(t *testing.T) {
	fsys := fstest.MapFS{
		"inventory.img": inventoryImage(t),
		"pstree.img":    image(t, magicPstree, task(7, 0)),
		"mm-7.img":      mmImage(t, anon(0, 64)),
		"pagemap-7.img": pagemapImage(t, 1, pe(0, 4, peLazy)),
	}
	if _, err := Load(fsys); err == nil || !strings.Contains(err.Error(), "dump without it") {
		t.Errorf("got %v", err)
	}
}

func TestLoadNumbers(t *testing.T) {
	leaderless := task(30, 20)
	leaderless.Pgid, leaderless.Sid = new(uint32(25)), new(uint32(20))
	n, err := LoadNumbers(fstest.MapFS{"pstree.img": image(t, magicPstree, task(20, 0), leaderless)})
	if err != nil || n.Root != 20 || !slices.Equal(n.Tasks, []int{20, 30, 1020, 1030}) ||
		!slices.Equal(n.Others, []int{25}) {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := LoadNumbers(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without images: %v", err)
	}
}

func TestVMALazy(t *testing.T) {
	for _, c := range []struct {
		name string
		vma  VMA
		want bool
	}{
		{"private anonymous", VMA{Flags: mapPrivate | mapAnonymous, Status: 513}, true},
		{"private file", VMA{Flags: mapPrivate, Status: 65}, false},
		{"shared anonymous", VMA{Flags: 1 | mapAnonymous, Status: 257}, false},
		{"locked", VMA{Flags: mapPrivate | mapAnonymous | mapLocked}, false},
		{"huge pages", VMA{Flags: mapPrivate | mapAnonymous | mapHugeTLB}, false},
		{"vdso", VMA{Flags: mapPrivate | mapAnonymous, Status: vmaVDSO | 1}, false},
		{"vvar", VMA{Flags: mapPrivate | mapAnonymous, Status: vmaVVAR | 1}, false},
	} {
		if got := c.vma.Lazy(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(image(f, magicPstree, task(7, 0)).Data, mmImage(f, anon(0, 64)).Data,
		pagemapImage(f, 1, pe(0, 4, pePresent|peLazy), pe(4, 2, peParent|peLazy)).Data,
		pagemapImage(f, 1, pe(0, 64, pePresent)).Data)
	f.Add([]byte{}, []byte{0x19, 0x43, 0x56, 0x54}, []byte("x"), []byte(nil))
	inv := inventoryImage(f)
	f.Fuzz(func(t *testing.T, tree, mem, pm, parent []byte) {
		defer budget.Watch(t, len(tree)+len(mem)+len(pm)+len(parent))()
		fsys := fstest.MapFS{
			"inventory.img":        inv,
			"pstree.img":           {Data: tree},
			"mm-7.img":             {Data: mem},
			"pagemap-7.img":        {Data: pm},
			"parent/pagemap-7.img": {Data: parent},
		}
		if n, err := LoadNumbers(fsys); err == nil && (!slices.IsSorted(n.Tasks) || !slices.IsSorted(n.Others)) {
			t.Fatalf("numbers %+v", n)
		}
		c, err := Load(fsys)
		if err != nil {
			return
		}
		for _, task := range c.Tasks {
			var last uint64
			for _, r := range task.Ranges {
				if r.Start < last || r.End <= r.Start || r.Off < 0 || (r.Start|r.End|uint64(r.Off))%PageSize != 0 {
					t.Fatalf("range %+v after %#x", r, last)
				}
				last = r.End
			}
		}
	})
}

// What is taken apart by hand is what the generated code makes of it.
func FuzzEntry(f *testing.F) {
	for _, e := range []*pagemap.PagemapEntry{
		pe(16, 3, pePresent|peLazy),
		{Vaddr: proto.Uint64(1 << 40), CompatNrPages: proto.Uint32(7)},
		{Vaddr: proto.Uint64(0), CompatNrPages: proto.Uint32(1), InParent: proto.Bool(true)},
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{8, 1, 16, 2, 0x32, 1, 'x', 0x33, 0x34})
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x10, 0, 8, 1, 16, 2}) // a field number that no message can have
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		got, err := decodeEntry("pagemap-1.img", b)
		var e pagemap.PagemapEntry
		want := proto.Unmarshal(b, &e)
		if (err == nil) != (want == nil) {
			t.Fatalf("%x: %v, the generated code says %v", b, err, want)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		flags, n := e.GetFlags(), e.GetNrPages()
		switch {
		case e.GetInParent():
			flags |= peParent
		case e.Flags == nil:
			flags = pePresent
		}
		if e.NrPages == nil {
			n = uint64(e.GetCompatNrPages())
		}
		if got != (entry{e.GetVaddr(), n, flags}) {
			t.Fatalf("%x: %+v, the generated code says %v", b, got, &e)
		}
	})
}

// What is taken apart by hand is what the generated code makes of it.
func FuzzMappings(f *testing.F) {
	for _, file := range []*fstest.MapFile{mmImage(f, anon(0, 64)), mmImage(f)} {
		f.Add(file.Data[12:])
	}
	f.Add([]byte{0x72, 0, 0x60, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		var got []VMA
		exe, err := Mappings("mm-1.img", b, func(v VMA, _ bool) error {
			got = append(got, v)
			return nil
		})
		if len(got) > countVMAs(b) {
			t.Fatalf("%d mappings, %d were counted", len(got), countVMAs(b))
		}
		var e mm.MmEntry
		if (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(b, &e) != nil {
			return // the generated code looks into fields that nobody asks for here, too
		}
		if err != nil {
			t.Fatal(err)
		}
		if exe != e.GetExeFileId() || len(got) != len(e.GetVmas()) {
			t.Fatalf("program %d, %d mappings, the generated code says %v", exe, len(got), &e)
		}
		for i, v := range e.GetVmas() {
			want := VMA{Start: v.GetStart(), End: v.GetEnd(), Prot: v.GetProt(), Flags: v.GetFlags(),
				Status: v.GetStatus(), Madvise: v.GetMadv()}
			if got[i] != want {
				t.Fatalf("%+v, the generated code says %v", got[i], v)
			}
		}
	})
}
