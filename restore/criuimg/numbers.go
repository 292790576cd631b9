package criuimg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
)

// Numbers are the ids that a restore needs free: CRIU makes a process for each of
// them, also for a session or group whose leader has ended before the dump.
type Numbers struct {
	// Root is the first process. 1 tells that the tree has a pid namespace of its own.
	Root int
	// Tasks are those of processes and threads, Others those of sessions and groups
	// that none of them leads; both rise.
	Tasks, Others []int
}

// LoadNumbers reads them from the process tree.
func LoadNumbers(fsys fs.FS) (n Numbers, err error) {
	r, err := openImage(fsys, "pstree.img", magicPstree)
	if err != nil {
		return n, fmt.Errorf("open process tree: %w", err)
	}
	defer r.close()
	for {
		var e pstree.PstreeEntry
		if err := r.next(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return n, err
		}
		if n.Root == 0 {
			n.Root = int(e.GetPid())
		}
		n.Tasks = append(n.Tasks, int(e.GetPid()))
		for _, t := range e.GetThreads() {
			n.Tasks = append(n.Tasks, int(t))
		}
		n.Others = append(n.Others, int(e.GetPgid()), int(e.GetSid()))
	}
	tidy := func(list []int, not ...int) []int {
		slices.Sort(list)
		return slices.DeleteFunc(slices.Compact(list), func(id int) bool {
			_, found := slices.BinarySearch(not, id)
			return id <= 0 || found
		})
	}
	n.Tasks = tidy(n.Tasks)
	n.Others = tidy(n.Others, n.Tasks...)
	return n, nil
}
