package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/restore/touch"
)

// followTime is how long a dump waits while nothing comes of memory that follows a restored process.
const followTime = 30 * time.Second

// follow is how much of a process's memory is on demand, and how much of it is there, in KiB.
type follow struct{ size, there int64 }

// follows looks for memory that userfaultfd brings. criu dumps what is there and takes the rest for memory that was
// never written: a restore of that dump would have zeros.
func follows(pid int) (f follow, err error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return f, err
	}
	defer file.Close()
	var one follow
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		switch name, rest, _ := strings.Cut(line, ":"); name {
		case "Size":
			one = follow{}
			fmt.Sscan(rest, &one.size)
		case "Rss":
			fmt.Sscan(rest, &one.there)
		case "VmFlags":
			if strings.Contains(rest+" ", " um ") { // proc_pid_smaps(5): VM_UFFD_MISSING
				f.size += one.size
				f.there += one.there
			}
		}
	}
	return f, lines.Err()
}

// allThere returns when no memory of a tree follows any more. It asks for what it can.
func (a *app) allThere(ctx context.Context, root int) error {
	var last follow
	since, told := time.Now(), false
	for {
		tree, err := cuda.Tree(root)
		if err != nil {
			return err
		}
		var sum follow
		for _, pid := range tree {
			f, err := follows(pid)
			if procfs.Gone(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("cannot tell if all memory of process %d is there, dump again later: %w", pid, err)
			}
			sum.size += f.size
			sum.there += f.there
			if f.size > 0 {
				// The background fill brings what this does not. A lack of progress is reported below.
				_ = touch.All(pid, followTime)
			}
		}
		switch {
		case sum.size == 0:
			return nil
		case sum != last:
			last, since = sum, time.Now()
		case time.Since(since) > followTime:
			return &codeError{
				exitError,
				"gpucr-fs stats STORE shows restores in progress; memory that cannot be read never comes",
				fmt.Errorf("memory of process %d has not come yet since its restore: a dump would lack it", root),
			}
		}
		if !told {
			told = true
			a.note("memory of process %d still follows its restore; the dump begins when it is there", root)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
