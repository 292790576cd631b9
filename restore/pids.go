package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Taken is a number that a restore needs and somebody has.
type Taken struct {
	ID  int
	Who string // such as "process 431 (sh)" or "process 440 (sh), a zombie of session 431"
	// Over tells that all who have it have ended, and are only to be reaped.
	Over bool
}

func (t Taken) String() string { return fmt.Sprintf("%d (%s)", t.ID, t.Who) }

// TakenPIDs finds which of the pids, sessions and groups that the images need are taken in this pid namespace.
// shellJob: the first process is to join the caller's session and group. It asks the kernel for each number whether it
// is in use, which takes a microsecond, and searches for the user only if it is.
func TakenPIDs(images fs.FS, shellJob bool) ([]Taken, error) {
	n, err := criuimg.LoadNumbers(images)
	if err != nil || n.Root == 1 {
		return nil, err // a namespace of its own has all numbers free
	}
	need := n.Tasks
	if !shellJob {
		need = append(need, n.Others...)
	}
	probe, other, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer probe.Close()
	defer other.Close()
	var taken []Taken
	for _, id := range need {
		// F_SETOWN takes any number that is in use, as a process, thread, group or session, ended ones too. It fails
		// for a number that is free, and nobody ever gets a signal here.
		if _, err := unix.FcntlInt(probe.Fd(), unix.F_SETOWN, id); !errors.Is(err, unix.ESRCH) {
			taken = append(taken, Taken{ID: id})
		}
	}
	if len(taken) > 0 {
		name(taken)
	}
	return taken, nil
}

// name finds who has the numbers.
func name(taken []Taken) {
	at := map[int]*Taken{}
	for i := range taken {
		t := &taken[i]
		at[t.ID] = t
		t.Who, t.Over = justEnded, true
		f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", t.ID)) // that of a thread is there too
		if err != nil {
			t.unseen(err)
		} else if f != nil {
			t.Who, t.Over = describe(t.ID, f), procfs.Ended(f)
		}
	}
	pids, unseen := procfs.PIDs()
	for _, pid := range pids {
		f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			unseen = err
		}
		if len(f) < 4 {
			continue
		}
		for i, what := range []string{"group", "session"} {
			id, err := strconv.Atoi(f[2+i])
			t := at[id]
			if err != nil || t == nil {
				continue
			}
			t.Over = t.Over && procfs.Ended(f)
			if t.Who == justEnded {
				t.Who = fmt.Sprintf("%s, of %s %d", describe(pid, f), what, id)
			}
		}
	}
	for i := range taken {
		if t := &taken[i]; unseen != nil && t.Who == justEnded {
			t.unseen(unseen)
		}
	}
}

const justEnded = "a process that has just ended"

// unseen notes that who has the number cannot be looked at: it may live.
func (t *Taken) unseen(err error) {
	t.Who, t.Over = fmt.Sprintf("a process that cannot be looked at now: %v", err), false
}

// describe says who a process is. A zombie is its parent's business.
func describe(pid int, stat []string) string {
	who := fmt.Sprintf("process %d%s", pid, comm(pid))
	if stat[0] != "Z" || len(stat) < 2 {
		return who
	}
	parent, _ := strconv.Atoi(stat[1])
	return fmt.Sprintf("%s, a zombie that process %d%s has not reaped", who, parent, comm(parent))
}

func comm(pid int) string {
	name := procfs.Name(pid)
	if name == "" {
		return ""
	}
	return " (" + name + ")"
}
