package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

type machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	FS       string `json:"file_system"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %d MB, Linux %s, %s", m.CPU, m.Cores, m.MemoryMB, m.Kernel, m.FS)
}

func describeMachine() (machine, error) {
	m := machine{Cores: runtime.NumCPU()}
	for line := range fileLines("/proc/cpuinfo") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	m.MemoryMB = meminfo("MemTotal") >> 20
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var st unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &st); err != nil {
		return m, err
	}
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs"}
	if m.FS = names[st.Type]; m.FS == "" {
		m.FS = fmt.Sprintf("file system %#x", st.Type)
	}
	return m, nil
}

func fileLines(path string) func(func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}

// meminfo gives a field of /proc/meminfo in bytes, 0 when it is not there.
func meminfo(field string) int64 {
	for line := range fileLines("/proc/meminfo") {
		var kb int64
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			if _, err := fmt.Sscan(rest, &kb); err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// touchMemory has the kernel hand out mb MB of zeroed memory, one piece on each core at a time, and gives it back. -1: all that is
// available but 3 GB, and no more than 14 GB, which the largest part of a run does not exceed.
func touchMemory(mb int) error {
	const step = 256 << 20
	want := int64(mb) << 20
	if mb < 0 {
		want = max(0, min(meminfo("MemAvailable")-3<<30, 14<<30))
	}
	begun := time.Now()
	pieces := int(want / step)
	held := make([][]byte, pieces)
	errs := make([]error, pieces)
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for i := range next {
				held[i], errs[i] = unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
			}
		})
	}
	for i := range pieces {
		next <- i
	}
	close(next)
	wg.Wait()
	for i, b := range held {
		if errs[i] != nil {
			return fmt.Errorf("touch memory: %w", errs[i])
		}
		if err := unix.Munmap(b); err != nil {
			return err
		}
	}
	if pieces > 0 {
		say("touched %d MB of memory in %.1f s", pieces*step>>20, time.Since(begun).Seconds())
	}
	return nil
}

// dropCaches empties the page, dentry and inode caches. Dirty pages are written first.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

func syncFS() { unix.Sync() }

// diskBytes gives what the files under dir occupy on disk.
func diskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		total += st.Blocks * 512
		return nil
	})
	return total, err
}

// readFile reads a file to its end in requests of 1 MiB and gives the number of bytes.
func readFile(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var total int64
	for buf := make([]byte, 1<<20); ; {
		n, err := f.Read(buf)
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// readTree reads every regular file under dir, which leaves it in the page cache.
func readTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = readFile(p)
		return err
	})
}
