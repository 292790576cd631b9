package kfdsim

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The driver maps a BO only by a file that may (drm_vma_node_is_allowed): one with a handle of it, or that of the KFD
// process whose it is. Passthrough does not ask the simulator. So a restored process is looked at when it resumes.

// cpuMapping is a range of a process's that maps a render node.
type cpuMapping struct {
	start, off, size uint64
	minor            int
}

// looks is how often a process is looked at before a mapping is noted. Its CPU runs meanwhile: between a look at its
// mappings and one at its descriptors it may undo a mapping and close the handle.
const looks = 5

// noteStrayMappings notes, as an error of the GPU, what a process has mapped of BOs that none of its descriptors may
// map.
func (s *Sim) noteStrayMappings(p *kfdProcess) {
	stray := s.strayMappings(p)
	for i := 1; i < looks && len(stray) > 0; i++ {
		time.Sleep(time.Millisecond)
		again := s.strayMappings(p)
		maps.DeleteFunc(stray, func(m cpuMapping, _ *bo) bool { return again[m] == nil })
	}
	s.mu.Lock()
	defer s.unlock()
	for m, b := range stray {
		s.noteGPUError(b.gpu, p.pid, "mmap", fmt.Errorf("%d bytes at %#x are of bo %d, which no descriptor of "+
			"process %d may map", m.size, m.start, b.id, p.pid))
	}
}

// strayMappings looks once.
func (s *Sim) strayMappings(p *kfdProcess) map[cpuMapping]*bo {
	all, err := s.cpuMappings(p.pid)
	if err != nil || len(all) == 0 {
		return nil // it has ended
	}
	files := s.renderFiles(p.pid)
	s.mu.Lock()
	defer s.unlock()
	may := map[*bo]bool{}
	for _, f := range files {
		for b := range f.byBO {
			may[b] = true
		}
	}
	for _, d := range p.pdds {
		for _, m := range d.mem {
			may[m.bo] = true
		}
	}
	var others []*bo
	for _, b := range s.bos {
		if b.kind <= boGTT && !may[b] {
			others = append(others, b)
		}
	}
	stray := map[cpuMapping]*bo{}
	for _, m := range all {
		for _, b := range others {
			if b.gpu.cfg.RenderMinor == m.minor && m.off >= b.off && m.off < b.off+b.size {
				stray[m] = b
			}
		}
	}
	return stray
}

// cpuMappings lists what a process maps of render nodes of this simulator.
func (s *Sim) cpuMappings(pid int) (out []cpuMapping, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dev := s.dev.Load()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var lo, hi, off, ino uint64
		var major, minor uint32
		var perms string
		n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %x %x:%x %d", &lo, &hi, &perms, &off, &major, &minor, &ino)
		if n == 7 && unix.Mkdev(major, minor) == dev && ino&^inoNumMask == inoRender {
			out = append(out, cpuMapping{start: lo, off: off, size: hi - lo, minor: int(ino & inoNumMask)})
		}
	}
	return out, lines.Err()
}

// renderFiles are the open render nodes of a process.
func (s *Sim) renderFiles(pid int) (out []*drmFile) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		link, err1 := os.Readlink(dir + "/" + e.Name())
		if err != nil || err1 != nil || !strings.Contains(link, "/renderD") {
			continue
		}
		f, errno := s.fileOf(caller{tid: pid}, fd)
		if errno == 0 && f.drm != nil {
			out = append(out, f.drm)
		}
	}
	return out
}
