package topology

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Path is where a host keeps its topology.
const Path = "/sys/class/kfd/kfd/topology"

// ErrNoKFD marks a tree without a KFD topology: no AMD GPU driver, or none of
// its devices.
var ErrNoKFD = errors.New("no KFD topology")

// roots are where the nodes may lie, seen from the root of a tree: the topology
// directory itself, the sysfs, or a whole file system.
var roots = []string{"nodes", "class/kfd/kfd/topology/nodes", path.Join(Path[1:], "nodes")}

// Parse reads the topology of a host. The root of fsys is the topology
// directory, that is, the one that holds nodes/; or a sysfs that has it at
// class/kfd/kfd/topology; or a whole file system that has it at [Path].
//
// A node whose directory or gpu_id cannot be read is skipped: that is how a
// cgroup hides a device. Everything else that cannot be read or understood is
// an error.
func Parse(fsys fs.FS) (*System, error) {
	var dir string
	var entries []fs.DirEntry
	var err error
	for _, dir = range roots {
		if entries, err = list(fsys, dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: none of %s is there", ErrNoKFD, strings.Join(roots, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("read KFD topology: %w", err)
	}
	s := &System{}
	for place, id := range numbers(entries) {
		n, err := parseNode(fsys, path.Join(dir, strconv.Itoa(id)), uint32(id))
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		n.Listed = place
		s.Nodes = append(s.Nodes, n)
	}
	slices.SortFunc(s.Nodes, func(a, b *Node) int { return cmp.Compare(a.ID, b.ID) })
	for i, n := range s.Nodes {
		if same := (&System{Nodes: s.Nodes[:i]}).GPU(n.GPUID); same != nil {
			return nil, fmt.Errorf("nodes %d and %d are both GPU %#x", same.ID, n.ID, n.GPUID)
		}
	}
	return s, nil
}

// list returns what a directory holds, in its own order.
func list(fsys fs.FS, dir string) ([]fs.DirEntry, error) {
	f, err := fsys.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: dir, Err: errors.ErrUnsupported}
	}
	return d.ReadDir(-1)
}

// numbers returns the entries that are numbers, in their order.
func numbers(entries []fs.DirEntry) []int {
	var out []int
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 31); err == nil && strconv.Itoa(int(n)) == e.Name() {
			out = append(out, int(n))
		}
	}
	return out
}

// parseNode returns nil for a hidden node.
func parseNode(fsys fs.FS, dir string, id uint32) (*Node, error) {
	b, err := fs.ReadFile(fsys, path.Join(dir, "gpu_id"))
	if err != nil {
		return nil, nil
	}
	gpu, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return nil, nil
	}
	n := &Node{ID: id, GPUID: uint32(gpu)}
	if err := n.parseProperties(fsys, path.Join(dir, "properties")); err != nil {
		return nil, err
	}
	if n.IsGPU() {
		if err := n.parseMemory(fsys, path.Join(dir, "mem_banks")); err != nil {
			return nil, err
		}
	}
	if err := n.parseLinks(fsys, path.Join(dir, "io_links")); err != nil {
		return nil, err
	}
	return n, nil
}

var propertyByName = func() map[string]Property {
	m := map[string]Property{}
	for p := range VRAMPublic {
		m[p.String()] = p
	}
	return m
}()

func (n *Node) parseProperties(fsys fs.FS, file string) error {
	return eachLine(fsys, file, func(name string, value uint64) bool {
		p, known := propertyByName[name]
		if !known {
			return true
		}
		if p != HiveID {
			value = uint64(uint32(value)) // as wide as the image keeps it
		}
		n.Props[p] = value
		// The rest of a CPU's properties describe no GPU.
		return n.IsGPU() || n.Props[CPUCoresCount] == 0
	})
}

// Types of a memory bank (HSA_HEAPTYPE): VRAM that the CPU can reach, or not.
const (
	heapPublic  = 1
	heapPrivate = 2
)

// parseMemory takes the first bank of VRAM.
func (n *Node) parseMemory(fsys fs.FS, dir string) error {
	entries, err := list(fsys, dir)
	if err != nil {
		return fmt.Errorf("read KFD topology: %w", err)
	}
	for _, bank := range numbers(entries) {
		var heap, size uint64
		err := eachLine(fsys, path.Join(dir, strconv.Itoa(bank), "properties"), func(name string, value uint64) bool {
			switch name {
			case "heap_type":
				heap = value
			case "size_in_bytes":
				size = value
			}
			return true
		})
		if err != nil {
			return err
		}
		if heap != heapPublic && heap != heapPrivate {
			continue
		}
		if size == 0 {
			return fmt.Errorf("%s: GPU %#x has a bank of VRAM without a size", dir, n.GPUID)
		}
		if heap == heapPublic {
			n.Props[VRAMPublic] = 1
		}
		n.Props[VRAMSize] = size
		return nil
	}
	return fmt.Errorf("%s: GPU %#x has no bank of VRAM", dir, n.GPUID)
}

func (n *Node) parseLinks(fsys fs.FS, dir string) error {
	entries, err := list(fsys, dir)
	if err != nil {
		return fmt.Errorf("read KFD topology: %w", err)
	}
	for _, link := range numbers(entries) {
		var l Link
		err := eachLine(fsys, path.Join(dir, strconv.Itoa(link), "properties"), func(name string, value uint64) bool {
			switch name {
			case "type":
				l.Type = LinkType(value)
			case "node_to":
				l.To = uint32(value)
			}
			return true
		})
		if err != nil {
			return err
		}
		if l.Type == PCIe || l.Type == XGMI {
			n.Links = append(n.Links, l)
		}
	}
	return nil
}

// eachLine calls f for every "name value" line of a file until f returns false.
func eachLine(fsys fs.FS, file string, f func(name string, value uint64) bool) error {
	r, err := fsys.Open(file)
	if err != nil {
		return fmt.Errorf("read KFD topology: %w", err)
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 2 {
			return fmt.Errorf("%s: line %q is not a name and a number", file, lines.Text())
		}
		value, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return fmt.Errorf("%s: line %q is not a name and a number", file, lines.Text())
		}
		if !f(words[0], value) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
