package criuimg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
)

// Checkpoint is what an image directory says about its tasks.
type Checkpoint struct {
	Tasks []Task
	// Plugins are the names of the CRIU plugins without which the images
	// cannot be restored, from the inventory.
	Plugins []string
}

// Task is one process of the checkpoint.
type Task struct {
	// PID in the task's own pid namespace, as in the image file names.
	PID, PPID int
	Threads   int
	// Dead tasks (zombies) have no memory: VMAs and Ranges are empty.
	Dead bool
	VMAs []VMA
	// Ranges are the lazily restorable runs of pages, by rising Start,
	// without overlap, each within one VMA.
	Ranges []Range
	// Args and Env are where its arguments and environment lie, as the kernel shows them in /proc/PID/cmdline and
	// environ: bytes, and unchecked.
	Args, Env Span
	exe       uint32 // the id of its program's file
}

// LazyBytes returns how much of the task's memory can be restored lazily.
func (t *Task) LazyBytes() uint64 {
	var n uint64
	for _, r := range t.Ranges {
		n += r.End - r.Start
	}
	return n
}

// maxTasks bounds the tasks of a checkpoint: no more can be frozen in any useful time.
const maxTasks = 1 << 16

// Load reads the inventory, the process tree and the memory layout of every
// task in it. Errors wrap ErrCorrupt or ErrUnknown, or come from fsys.
func Load(fsys fs.FS) (*Checkpoint, error) {
	c := &Checkpoint{}
	inv, err := openImage(fsys, "inventory.img", magicInventory)
	if err != nil {
		return nil, fmt.Errorf("open inventory: %w", err)
	}
	defer inv.close()
	var ie inventory.InventoryEntry
	if err := inv.one(&ie); err != nil {
		return nil, err
	}
	if v := ie.GetImgVersion(); v != imageVersion {
		return nil, fmt.Errorf("inventory.img: images of version %d: %w", v, ErrUnknown)
	}
	c.Plugins = ie.GetPluginsEntry().GetPlugins()

	if c.Tasks, err = loadTree(fsys); err != nil {
		return nil, err
	}
	for i := range c.Tasks {
		if err := loadMemory(fsys, &c.Tasks[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// loadTree reads pstree.img: one entry a task, CRIU hands over exactly as many.
func loadTree(fsys fs.FS) ([]Task, error) {
	r, err := openImage(fsys, "pstree.img", magicPstree)
	if err != nil {
		return nil, fmt.Errorf("open process tree: %w", err)
	}
	defer r.close()
	var tasks []Task
	seen := make(map[int]bool)
	for {
		var e pstree.PstreeEntry
		if err := r.next(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		pid := int(e.GetPid())
		if pid <= 0 || pid > 1<<22 {
			return nil, corrupt(r.name, "pid %d", pid)
		}
		if seen[pid] {
			return nil, corrupt(r.name, "pid %d twice", pid)
		}
		if len(tasks) == maxTasks {
			return nil, corrupt(r.name, "more than %d tasks", maxTasks)
		}
		seen[pid] = true
		tasks = append(tasks, Task{PID: pid, PPID: int(e.GetPpid()), Threads: len(e.GetThreads())})
	}
	if len(tasks) == 0 {
		return nil, corrupt(r.name, "has no task")
	}
	return tasks, nil
}
