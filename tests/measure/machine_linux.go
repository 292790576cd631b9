// Package measure holds what benchmarks share: which machine this is, and how to bring its memory and its caches into a
// known state before something is timed.
//
// A virtual machine gives free memory back to its host, and getting it again is 4 to 8 times slower than clearing
// memory that is still there: whoever is measured first, or after a pause, pays for it. Freshen makes sure that nobody
// does.
package measure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what figures depend on.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	FS       string `json:"file_system"`
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %d MB, Linux %s, %s", m.CPU, m.Cores, m.MemoryMB, m.Kernel, m.FS)
}

// Describe looks at this machine.
func Describe() (Machine, error) {
	m := Machine{Cores: runtime.NumCPU()}
	for line := range fileLines("/proc/cpuinfo") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	m.MemoryMB = Meminfo("MemTotal") >> 20
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var st unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &st); err != nil {
		return m, err
	}
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs",
		unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs"}
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

// Meminfo gives a field of /proc/meminfo in bytes, 0 when it is not there.
func Meminfo(field string) int64 {
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

// Available gives the memory in bytes that can be had without swapping.
func Available() int64 { return Meminfo("MemAvailable") }

// Freshen has the kernel hand out n bytes of zeroed memory, one piece on each core at a time, and gives it back: for
// the next moments what is handed out comes from there and not from the host. It takes no more than is available but 1
// GB. It tells how long it took.
func Freshen(n int64) (time.Duration, error) {
	const step = 64 << 20
	n = min(n, Available()-1<<30)
	if n < step {
		return 0, nil
	}
	begun := time.Now()
	held := make([][]byte, n/step)
	errs := make([]error, len(held))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for i := range next {
				held[i], errs[i] = unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE,
					unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
			}
		})
	}
	for i := range held {
		next <- i
	}
	close(next)
	wg.Wait()
	took := time.Since(begun)
	for i, b := range held {
		if b != nil {
			errs[i] = unix.Munmap(b)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return took, fmt.Errorf("touch memory: %w", err)
	}
	return took, nil
}

// DropCaches empties the page, dentry and inode caches. Dirty pages are written first.
func DropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// Sync writes what is dirty to the disks.
func Sync() { unix.Sync() }

// DiskBytes gives what the files under dir occupy on disk.
func DiskBytes(dir string) (int64, error) {
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

// ReadFile reads a file to its end in requests of 1 MiB and gives the number of bytes.
func ReadFile(path string) (int64, error) {
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

// ReadTree reads every regular file under dir, which leaves it in the page cache.
func ReadTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = ReadFile(p)
		return err
	})
}

// Median gives the middle of v, 0 without any.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// MedianOf gives the median of one figure of samples, 0 of none.
func MedianOf[T any](samples []T, figure func(T) float64) float64 {
	v := make([]float64, len(samples))
	for i, s := range samples {
		v[i] = figure(s)
	}
	return Median(v)
}
