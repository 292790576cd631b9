package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

// tree makes the topology directory of a machine with one CPU and two GPUs in
// a hive, as the KFD prints it.
func tree() fstest.MapFS {
	m := fstest.MapFS{}
	file := func(name, text string) { m["nodes/"+name] = &fstest.MapFile{Data: []byte(text)} }
	file("0/gpu_id", "0\n")
	// A CPU's line after cpu_cores_count is not read.
	file("0/properties", "cpu_cores_count 64\nsimd_count zero\n")
	file("0/io_links/0/properties", "type 2\nversion_major 0\nnode_from 0\nnode_to 1\nweight 20\n")
	file("0/io_links/1/properties", "type 2\nnode_to 2\n")
	for i := 1; i <= 2; i++ {
		file(fmt.Sprintf("%d/gpu_id", i), fmt.Sprintln(51000+i))
		text := "cpu_cores_count 0\nunknown_property 18446744073709551615\n"
		for p := SIMDCount; p < VRAMPublic; p++ {
			text += fmt.Sprintf("%s %d\n", p, 1000*i+int(p))
		}
		file(fmt.Sprintf("%d/properties", i), text)
		file(fmt.Sprintf("%d/mem_banks/0/properties", i),
			fmt.Sprintf("heap_type %d\nsize_in_bytes 68702699520\nflags 0\nwidth 4096\n", i))
		file(fmt.Sprintf("%d/mem_banks/1/properties", i), "heap_type 4\nsize_in_bytes 1\n")
		file(fmt.Sprintf("%d/io_links/0/properties", i), "type 2\nnode_to 0\n")
		file(fmt.Sprintf("%d/io_links/1/properties", i), fmt.Sprintf("type 11\nnode_to %d\n", 3-i))
		file(fmt.Sprintf("%d/io_links/10/properties", i), "type 4\nnode_to 0\n")
		file(fmt.Sprintf("%d/caches/0/properties", i), "not a name and a number")
	}
	m["generation_id"] = &fstest.MapFile{Data: []byte("2\n")}
	return m
}

func TestParse(t *testing.T) {
	s, err := Parse(tree())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 3 || s.Nodes[0].IsGPU() || s.Nodes[0].Props[CPUCoresCount] != 64 ||
		s.Nodes[0].Props[SIMDCount] != 0 {
		t.Fatalf("nodes %+v", s.Nodes)
	}
	if want := []Link{{PCIe, 1}, {PCIe, 2}}; !reflect.DeepEqual(s.Nodes[0].Links, want) {
		t.Errorf("links of CPU 0 are %v, want %v", s.Nodes[0].Links, want)
	}
	for i := 1; i <= 2; i++ {
		n := s.GPU(uint32(51000 + i))
		if n == nil || n.ID != uint32(i) {
			t.Fatalf("GPU %d is node %+v", 51000+i, n)
		}
		for p := SIMDCount; p < VRAMPublic; p++ {
			if n.Props[p] != uint64(1000*i+int(p)) {
				t.Errorf("GPU %d: %v is %d", n.GPUID, p, n.Props[p])
			}
		}
		if n.Props[VRAMSize] != 68702699520 || n.Props[VRAMPublic] != uint64(2-i) {
			t.Errorf("GPU %d: VRAM %d, public %d", n.GPUID, n.Props[VRAMSize], n.Props[VRAMPublic])
		}
		if want := []Link{{PCIe, 0}, {XGMI, uint32(3 - i)}}; !reflect.DeepEqual(n.Links, want) {
			t.Errorf("GPU %d: links %v, want %v", n.GPUID, n.Links, want)
		}
	}
	if h := s.Hives(); len(h) != 1 || len(h[0]) != 2 {
		t.Errorf("hives %v", h)
	}
	if s.GPU(0) != nil {
		t.Error("a CPU is GPU 0")
	}

	// A sysfs, the root of a whole file system, and a real directory.
	sysfs, whole := fstest.MapFS{}, fstest.MapFS{}
	dir := t.TempDir()
	for name, f := range tree() {
		sysfs[strings.TrimPrefix(Path, "/sys/")+"/"+name] = f
		whole[strings.TrimPrefix(Path, "/")+"/"+name] = f
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, fsys := range []fs.FS{sysfs, whole, os.DirFS(dir)} {
		got, err := Parse(fsys)
		if err == nil {
			unlisted(got)
		}
		if unlisted(s); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%T parses to %+v, %v", fsys, got, err)
		}
	}
}

// unlisted takes away what the order of directories tells.
func unlisted(s *System) {
	for _, n := range s.Nodes {
		n.Listed = 0
		slices.SortFunc(n.Links, func(a, b Link) int { return int(a.To) - int(b.To) })
	}
}

// backwards lists directories from the end.
type backwards struct{ fs.FS }

type backwardsDir struct{ fs.ReadDirFile }

func (b backwards) Open(name string) (fs.File, error) {
	f, err := b.FS.Open(name)
	if d, ok := f.(fs.ReadDirFile); ok {
		return backwardsDir{d}, err
	}
	return f, err
}

func (d backwardsDir) ReadDir(n int) ([]fs.DirEntry, error) {
	entries, err := d.ReadDirFile.ReadDir(n)
	slices.Reverse(entries)
	return entries, err
}

// Nodes are known by their numbers, and where they are listed is kept.
func TestListed(t *testing.T) {
	s, err := Parse(backwards{tree()})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range s.Nodes {
		if int(n.ID) != i || n.Listed != len(s.Nodes)-1-i {
			t.Errorf("node %d is at %d, listed as %d", n.ID, i, n.Listed)
		}
	}
	if want := []Link{{XGMI, 2}, {PCIe, 0}}; !slices.Equal(s.GPU(51001).Links, want) {
		t.Errorf("links %v, listed as %v", s.GPU(51001).Links, want)
	}
}

func TestParseHiddenNodes(t *testing.T) {
	for name, hide := range map[string]func(fstest.MapFS){
		"no gpu_id":    func(m fstest.MapFS) { delete(m, "nodes/1/gpu_id") },
		"empty gpu_id": func(m fstest.MapFS) { m["nodes/1/gpu_id"].Data = nil },
		"no number":    func(m fstest.MapFS) { m["nodes/1/gpu_id"].Data = []byte("x") },
	} {
		m := tree()
		hide(m)
		s, err := Parse(m)
		if err != nil || len(s.Nodes) != 2 || s.GPU(51001) != nil {
			t.Errorf("%s: nodes %v, %v", name, s, err)
			continue
		}
		// The link to it remains, but counts no more, nor is there a hive.
		if n := s.GPU(51002); s.usable(n) != 1 || len(n.Links) != 2 || len(s.Hives()) != 0 {
			t.Errorf("%s: %d of %d links usable, hives %v", name, s.usable(n), len(n.Links), s.Hives())
		}
	}
	m := tree()
	m["nodes/1x/gpu_id"] = &fstest.MapFile{Data: []byte("7")}
	m["nodes/007/gpu_id"] = &fstest.MapFile{Data: []byte("7")}
	if s, err := Parse(m); err != nil || len(s.Nodes) != 3 {
		t.Errorf("directories that are no nodes: %v, %v", s, err)
	}
}

func TestParseErrors(t *testing.T) {
	for want, spoil := range map[string]func(fstest.MapFS){
		`nodes/1/properties: line "simd_count" is not a name and a number`: func(m fstest.MapFS) {
			m["nodes/1/properties"].Data = []byte("simd_count\n")
		},
		`nodes/1/properties: line "simd_count 0x10" is not a name and a number`: func(m fstest.MapFS) {
			m["nodes/1/properties"].Data = []byte("simd_count 0x10\n")
		},
		`nodes/1/properties: line "" is not a name and a number`: func(m fstest.MapFS) {
			m["nodes/1/properties"].Data = []byte("\n")
		},
		"nodes/1/properties: file does not exist": func(m fstest.MapFS) { delete(m, "nodes/1/properties") },
		"nodes/1/mem_banks: GPU 0xc739 has no bank of VRAM": func(m fstest.MapFS) {
			m["nodes/1/mem_banks/0/properties"].Data = []byte("heap_type 0\nsize_in_bytes 5\n")
		},
		"nodes/1/mem_banks: GPU 0xc739 has a bank of VRAM without a size": func(m fstest.MapFS) {
			m["nodes/1/mem_banks/0/properties"].Data = []byte("heap_type 1\n")
		},
		"nodes/2/io_links/1/properties: line \"type\" is not": func(m fstest.MapFS) {
			m["nodes/2/io_links/1/properties"].Data = []byte("type\n")
		},
		"nodes 1 and 2 are both GPU 0xc739": func(m fstest.MapFS) { m["nodes/2/gpu_id"].Data = []byte("51001") },
	} {
		m := tree()
		spoil(m)
		if _, err := Parse(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := Parse(fstest.MapFS{}); !errors.Is(err, ErrNoKFD) {
		t.Errorf("an empty tree: %v", err)
	}
}

func TestParseSettings(t *testing.T) {
	env := func(kv ...string) func(string) (string, bool) {
		m := map[string]string{}
		for _, s := range kv {
			k, v, _ := strings.Cut(s, "=")
			m[k] = v
		}
		return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
	}
	if s, warn := ParseSettings(env()); s != (Settings{}) || warn != nil {
		t.Errorf("without variables: %+v, %v", s, warn)
	}
	for _, sw := range Switches() {
		for v, waived := range map[string]bool{"0": true, "NO": true, "no": true, "1": false, "YES": false,
			"Yes": false} {
			s, warn := ParseSettings(env(sw.String() + "=" + v))
			if s.Waived.Has(sw) != waived || warn != nil || len(s.Waived.List()) > 1 {
				t.Errorf("%v=%s: waived %v, %v", sw, v, s.Waived.List(), warn)
			}
		}
		s, warn := ParseSettings(env(sw.String() + "=off"))
		if s != (Settings{}) || len(warn) != 1 || warn[0] != "ignoring "+sw.String()+"=off: expected 0, NO, 1 or YES" {
			t.Errorf("%v=off: %+v, %q", sw, s, warn)
		}
	}
	for v, want := range map[string]uint64{
		"0": 0, "1": 1, "4096": 4096, "4k": 4096, "4K": 4096, "16M": 16 << 20, "2G": 2 << 30, "0x10M": 16 << 20,
		"0X10": 16,
		"010":  8, "0k": 0, "18446744073709551615": math.MaxUint64, "17179869183G": 17179869183 << 30,
	} {
		s, warn := ParseSettings(env(MaxBufferVar + "=" + v))
		if s.MaxBufferSize != want || warn != nil {
			t.Errorf("%s=%s: %d, %v, want %d", MaxBufferVar, v, s.MaxBufferSize, warn, want)
		}
	}
	for _, v := range []string{"", "x", "4m", "4g", "4T", "4KB", "-1", "0x", "09", "0b1", "1_000",
		"18446744073709551616", "17179869184G", "K"} {
		s, warn := ParseSettings(env(MaxBufferVar + "=" + v))
		if s.MaxBufferSize != 0 || len(warn) != 1 ||
			!strings.HasPrefix(warn[0], "ignoring KFD_MAX_BUFFER_SIZE="+v+": ex") {
			t.Errorf("%s=%s: %d, %q", MaxBufferVar, v, s.MaxBufferSize, warn)
		}
	}
}

func FuzzParse(f *testing.F) {
	m := tree()
	seed := func(name string) string { return string(m["nodes/1/"+name].Data) }
	f.Add(seed("gpu_id"), seed("properties"), seed("mem_banks/0/properties"), seed("io_links/1/properties"))
	f.Add("0", "cpu_cores_count 1", "", "type 2\nnode_to 1")
	f.Add("-1", "a b\n", "heap_type 1\nsize_in_bytes 1", "type 11")
	f.Fuzz(func(t *testing.T, id, properties, memory, link string) {
		defer budget.Watch(t, len(id)+len(properties)+len(memory)+len(link))()
		m := tree()
		for name, text := range map[string]string{"gpu_id": id, "properties": properties,
			"mem_banks/0/properties": memory, "io_links/1/properties": link} {
			m["nodes/1/"+name].Data = []byte(text)
		}
		s, err := Parse(m)
		if err != nil {
			return
		}
		for _, n := range s.GPUs() {
			if n.Props[VRAMSize] == 0 {
				t.Fatalf("GPU %#x has no VRAM", n.GPUID)
			}
		}
		// Whatever was read maps onto itself as it is.
		mapping, ok := Map(s, s, 0)
		if !ok {
			t.Fatalf("does not map onto itself: %v", Explain(s, s, 0).Lines())
		}
		for _, p := range mapping.GPUs {
			if p.Src != p.Dst {
				t.Fatalf("%v does not stay where it is", p)
			}
		}
	})
}

func FuzzParseSettings(f *testing.F) {
	for _, v := range []string{"0", "1", "no", "YES", "4k", "0x10M", "010", "-1"} {
		f.Add(v, v)
	}
	f.Fuzz(func(t *testing.T, sw, size string) {
		defer budget.Watch(t, len(sw)+len(size))()
		s, warn := ParseSettings(func(k string) (string, bool) {
			if k == MaxBufferVar {
				return size, true
			}
			return sw, k == VRAM.String()
		})
		if len(warn) > 2 || s.Waived&^Waive(VRAM) != 0 || len(warn) == 2 && s != (Settings{}) {
			t.Fatalf("%q, %q: %+v, %q", sw, size, s, warn)
		}
	})
}
