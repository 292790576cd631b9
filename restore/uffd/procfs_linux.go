package uffd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// parentOf returns a process's parent, 0 when the process is gone or not seen from here. With an error it is not known.
func parentOf(pid int) (int, error) {
	f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrPermission) || err == nil && len(f) < 2 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(f[1])
}

// runs reports whether a thread of a process may still be doing something: it
// neither is stopped or ended nor waits for what only a fatal signal ends, such
// as the reading of its fork's report. One that cannot be looked at may.
func runs(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return !procfs.Gone(err)
	}
	return slices.ContainsFunc(threads, func(e os.DirEntry) bool {
		f, err := procfs.ReadStat(filepath.Join(dir, e.Name(), "stat"))
		return err != nil || len(f) > 0 && !strings.ContainsAny(f[0], "tTDZX")
	})
}

// tree is who is whose parent.
type tree map[int]int

// processTree returns what can be seen of it.
func processTree() tree {
	t, _ := readTree()
	return t
}

// readTree is processTree for who must know what cannot be seen now: with an error there may be more.
func readTree() (tree, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	return treeOf(entries)
}

// treeOf is readTree of what /proc has.
func treeOf(entries []os.DirEntry) (t tree, err error) {
	t = make(tree)
	for _, e := range entries {
		pid, perr := strconv.Atoi(e.Name())
		if perr != nil {
			continue
		}
		switch up, perr := parentOf(pid); {
		case perr != nil:
			err = perr
		case up > 0:
			t[pid] = up
		}
	}
	return t, err
}

// sort puts parents before their children. A process that is killed before its
// child cannot see that one die, while a stop reaches only one of its threads at
// first.
func (t tree) sort(pids []int) {
	depth := func(pid int) (n int) {
		for up, ok := t[pid]; ok && n < len(t); up, ok = t[up] {
			n++
		}
		return n
	}
	slices.SortStableFunc(pids, func(a, b int) int { return depth(a) - depth(b) })
}

// descendants returns all processes below the given ones, without them, parents
// first. A pid of 0, which is how a process of another pid namespace may look,
// has none. Where there are no descriptors to look it waits for them: who is left out
// is not found any more once its parent has been killed.
func descendants(pids []int) []int {
	pids = slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return pid <= 1 })
	if len(pids) == 0 {
		return nil
	}
	var t tree
	patiently(func() (err error) { t, err = readTree(); return err })
	below := make(map[int]bool)
	for _, pid := range pids {
		below[pid] = true
	}
	var out []int
	for more := true; more; {
		more = false
		for pid, up := range t {
			if below[up] && !below[pid] {
				below[pid], more = true, true
				out = append(out, pid)
			}
		}
	}
	t.sort(out)
	return out
}

// samePIDs reports whether pids mean the same to another process as here.
func samePIDs(pid int) bool {
	a, err := os.Readlink("/proc/self/ns/pid")
	b, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && err2 == nil && a == b
}

// killTogether kills processes none of which is to see another one die.
func killTogether(pids []int) {
	processTree().sort(pids)
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, pid := range pids {
			if pid > 1 { // 0 and -1 mean others
				unix.Kill(pid, sig)
			}
		}
	}
}

// mappings returns a process's mappings by their addresses: none when it is gone, or
// when this process may not see them. With an error they are not known. The first thread
// may have ended before the others: then its smaps has none.
func mappings(pid int) (all []mapping, err error) {
	all, err = mappingsIn(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil || len(all) > 0 {
		return all, err
	}
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if procfs.Gone(err) || errors.Is(err, os.ErrPermission) {
		return nil, nil
	}
	for _, e := range threads {
		if err != nil || len(all) > 0 {
			break
		}
		all, err = mappingsIn(filepath.Join(dir, e.Name(), "smaps"))
	}
	return all, err
}

// mappingsIn is mappings of one thread's.
func mappingsIn(path string) (all []mapping, err error) {
	f, err := os.Open(path)
	switch {
	case procfs.Gone(err) || errors.Is(err, os.ErrPermission):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		head, rest, _ := strings.Cut(lines.Text(), " ")
		if head == "VmFlags:" && len(all) > 0 {
			all[len(all)-1].wiped = slices.Contains(strings.Fields(rest), "wf")
			continue
		}
		from, to, ok := strings.Cut(head, "-")
		if !ok {
			continue
		}
		start, err := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err == nil && err2 == nil {
			all = append(all, mapping{start: start, end: end})
		}
	}
	switch err := lines.Err(); {
	case procfs.Gone(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return all, nil
}
