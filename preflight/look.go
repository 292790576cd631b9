package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// CRIU are the options that CRIU will be given, by their long names.
type CRIU interface {
	Has(name string) bool
	Value(name string) string
}

// State is what the driver says of a process.
type State struct {
	Name   string // such as "running"
	Failed bool   // the driver cannot serve it any more
	Known  bool   // false: it has not initialised CUDA
}

// Options of Look.
type Options struct {
	// Root is the first process of the tree.
	Root int
	// CRIU, nil for none.
	CRIU CRIU
	// NoCUDA: NVIDIA GPUs are left to a plugin of CRIU's.
	NoCUDA bool
	// States asks the driver where a process stands. nil: it is not asked, and why, for the one who has a process that
	// uses CUDA, is Driver.
	States func(ctx context.Context, pid int) (State, error)
	Driver error
	// AMD: a plugin of CRIU's takes care of /dev/kfd and render nodes.
	AMD bool
	// Beside, unless it is 0, is a process in whose namespaces CRIU will run; this one's otherwise.
	Beside int
	// Handle are kinds of findings that the dump takes care of by itself, unless the function tells why it cannot for a
	// process.
	Handle map[string]func(pid int) error
	// Limit bounds the time; 0: 30 s.
	Limit time.Duration
}

func (o *Options) has(names ...string) bool {
	return o.CRIU != nil && slices.ContainsFunc(names, o.CRIU.Has)
}

const defaultLimit = 30 * time.Second

// Look examines the tree below Root. The error is about looking itself: no such process, no permission, not done in
// time.
func Look(ctx context.Context, o Options) (Report, error) {
	if o.Limit == 0 {
		o.Limit = defaultLimit
	}
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	type result struct {
		r   Report
		err error
	}
	// A system call on a file system that hangs cannot be called off: it is left behind.
	done := make(chan result, 1)
	go func() {
		r, err := look(ctx, &o)
		done <- result{r, err}
	}()
	var res result
	select {
	case res = <-done:
	case <-ctx.Done():
		res.err = ctx.Err()
	}
	if errors.Is(res.err, context.DeadlineExceeded) {
		res.err = fmt.Errorf(
			"look at process %d and its descendants: not done in %v; a file system that it uses may hang",
			o.Root,
			o.Limit,
		)
	}
	return res.r, res.err
}

func look(ctx context.Context, o *Options) (Report, error) {
	tasks, err := tree(ctx, o.Root)
	if err != nil {
		return Report{}, err
	}
	if first := tasks[0]; first.kernel {
		return Report{}, fmt.Errorf("process %d (%s) is a thread of the kernel", o.Root, first.name)
	}
	all := &family{o: o, tasks: tasks, members: map[int]bool{}, sessions: map[int]bool{}}
	for _, t := range tasks {
		all.members[t.pid] = true
	}
	if err := all.prepare(); err != nil {
		return Report{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, t := range tasks {
		g.Go(func() error {
			err := t.read(gctx, all)
			if gone(err) {
				t.ended, err = true, nil
			}
			if errors.Is(err, fs.ErrPermission) {
				err = fmt.Errorf("look at process %d: %w; root's capabilities are needed", t.pid, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return Report{}, err
	}
	all.tasks = slices.DeleteFunc(tasks, func(t *task) bool { return t.ended })
	if len(all.tasks) == 0 || all.tasks[0].pid != o.Root {
		return Report{}, fmt.Errorf("process %d has ended", o.Root)
	}
	return all.judge(ctx)
}

// tree lists a process and its descendants, zombies too, parents before children.
func tree(ctx context.Context, root int) ([]*task, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return treeOf(ctx, dir, root)
}

// treeOf is tree of an open /proc.
func treeOf(ctx context.Context, dir *os.File, root int) ([]*task, error) {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	children := map[int][]*task{}
	var first *task
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
		if gone(err) || errors.Is(err, fs.ErrPermission) {
			continue // it has ended, or is another user's
		}
		if err != nil {
			return nil, err
		}
		s, ok := parseStat(text)
		if !ok {
			continue
		}
		t := &task{pid: pid, stat: s}
		if pid == root {
			first = t
		}
		children[s.parent] = append(children[s.parent], t)
	}
	if first == nil {
		return nil, fmt.Errorf("there is no process %d", root)
	}
	all := []*task{first}
	for i := 0; i < len(all); i++ {
		kids := children[all[i].pid]
		slices.SortFunc(kids, func(a, b *task) int { return a.pid - b.pid })
		all = append(all, kids...)
	}
	return all, nil
}

// gone tells that an error means that a process has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// family is a tree while it is examined. prepare fills it before the tasks are read, at once; they only read it.
type family struct {
	o          *Options
	tasks      []*task // the first is the root
	members    map[int]bool
	sessions   map[int]bool
	locked     map[file]bool
	ghostLimit int64
	root, self map[string]string // namespaces of the first process, and CRIU's
	mounts     map[int]bool      // of all mount namespaces of the tree, and CRIU's
	// mounts of file systems that CRIU does not know, where the tree has its own mount namespace
	foreign []string
}

// criuGhostLimit is CRIU's own, without an option.
const criuGhostLimit = 1 << 20

func (a *family) prepare() (err error) {
	a.ghostLimit = criuGhostLimit
	if a.o.has("ghost-limit") {
		a.ghostLimit = parseSize(a.o.CRIU.Value("ghost-limit"))
	}
	if f, err := os.Open("/proc/locks"); err == nil {
		a.locked, err = lockedFiles(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	self := "self"
	if a.o.Beside != 0 {
		self = strconv.Itoa(a.o.Beside)
	}
	a.root, a.self = namespaces(strconv.Itoa(a.o.Root)), namespaces(self)
	a.mounts = map[int]bool{}
	seen := map[string]bool{}
	for _, who := range append([]string{self}, a.names()...) {
		ns, err := os.Readlink(filepath.Join("/proc", who, "ns/mnt"))
		if err != nil || seen[ns] {
			continue
		}
		f, err := os.Open(filepath.Join("/proc", who, "mountinfo"))
		if gone(err) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) { // EINVAL: a zombie
			continue
		}
		if err != nil {
			return fmt.Errorf("read the mounts of process %s: %w", who, err)
		}
		seen[ns] = true
		err = eachMount(f, func(m mount) {
			a.mounts[m.id] = true
			if ns != a.self["mnt"] && m.root == "/" && m.point != "/" && !slices.Contains(known, fileSystem(m.kind)) {
				a.foreign = append(a.foreign, m.point+" ("+m.kind+")")
			}
		})
		if err = errors.Join(err, f.Close()); err != nil && !gone(err) {
			return fmt.Errorf("read the mounts of process %s: %w", who, err)
		}
	}
	return nil
}

func (a *family) names() []string {
	names := make([]string, len(a.tasks))
	for i, t := range a.tasks {
		names[i] = strconv.Itoa(t.pid)
	}
	return names
}

// known are the file systems that CRIU 4.2 mounts again by itself.
var known = []string{
	"proc", "sysfs", "devtmpfs", "binfmt_misc", "tmpfs", "devpts", "simfs",
	"btrfs", "pstore", "mqueue", "securityfs", "fusectl", "debugfs", "tracefs", "cgroup",
	"cgroup2", "aufs", "fuse", "overlay", "autofs",
}

// fileSystem takes a subtype off: fuse.sshfs.
func fileSystem(kind string) string {
	name, _, _ := strings.Cut(kind, ".")
	return name
}

// kinds of namespaces that a process below the first must share with it; CRIU dumps mount and network namespaces of
// each.
var shared = []string{"ipc", "uts", "pid", "user", "time", "cgroup"}

func namespaces(who string) map[string]string {
	ns := map[string]string{}
	for _, kind := range append([]string{"mnt", "net"}, shared...) {
		if to, err := os.Readlink(filepath.Join("/proc", who, "ns", kind)); err == nil {
			ns[kind] = to
		}
	}
	return ns
}

// parseSize reads a size as CRIU does: a number, and K, M or G. What it cannot read is 0.
func parseSize(s string) int64 {
	shift := 0
	for i, unit := range []string{"K", "M", "G"} {
		if rest, ok := strings.CutSuffix(strings.ToUpper(s), unit); ok {
			s, shift = rest, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return 0
	}
	return n << shift
}
