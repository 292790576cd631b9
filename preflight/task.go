package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// task is one process of a tree.
type task struct {
	pid int
	stat
	ended bool

	threads int
	tracer  int
	nspids  []string // its pid in each namespace, the innermost last
	nssid   string   // its session in the innermost
	asleep  []sleeper

	found   map[string]*details // by kind
	sockets []socket
	slaves  []int // indices of terminals
	masters []int
	gpu     gpuTraces
	files   map[file]bool // deleted ones that were judged already
}

// sleeper is a thread in uninterruptible sleep.
type sleeper struct {
	tid      int
	switches string // how often it has run
}

// socket is a descriptor that is one.
type socket struct {
	fd    int
	inode uint64
}

func (t *task) path(parts ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(t.pid)}, parts...)...)
}

func (t *task) add(kind, format string, args ...any) {
	d := t.found[kind]
	if d == nil {
		d = &details{}
		t.found[kind] = d
	}
	d.add(fmt.Sprintf(format, args...))
}

// read learns all that one process tells by itself.
func (t *task) read(ctx context.Context, all *family) error {
	t.found, t.files = map[string]*details{}, map[file]bool{}
	if err := t.readThreads(ctx); err != nil {
		return err
	}
	if t.state == 'Z' || t.state == 'X' {
		return nil // it has nothing else any more
	}
	if err := t.readMappings(ctx, all); err != nil {
		return err
	}
	if err := t.readDescriptors(ctx, all); err != nil {
		return err
	}
	own := namespaces(strconv.Itoa(t.pid))
	for _, kind := range shared {
		if ns := own[kind]; ns != "" && ns != all.root[kind] && ns != all.self[kind] {
			t.add(kindNested, "%s", kind)
		}
	}
	return nil
}

// readThreads reads the status of all threads.
func (t *task) readThreads(ctx context.Context) error {
	return t.eachNumber(ctx, "task", t.readThread)
}

// eachNumber calls fn for each name in a folder of the task that is a number, a thread or a descriptor. What is gone by
// the time that fn looks at it is left out. There may be a million: the names are read a thousand at a time.
func (t *task) eachNumber(ctx context.Context, folder string, fn func(n int) error) error {
	dir, err := os.Open(t.path(folder))
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if err := fn(n); err != nil && !gone(err) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *task) readThread(tid int) error {
	f, err := os.Open(t.path("task", strconv.Itoa(tid), "status"))
	if err != nil {
		return err
	}
	defer f.Close()
	s := sleeper{tid: tid}
	asleep := false
	err = eachField(f, func(name, value string) {
		switch name {
		case "State":
			asleep = strings.HasPrefix(value, "D")
		case "TracerPid":
			if n, _ := strconv.Atoi(value); n != 0 {
				t.tracer = n
			}
		case "NSpid":
			if tid == t.pid {
				t.nspids = strings.Fields(value)
			}
		case "NSsid":
			if ids := strings.Fields(value); tid == t.pid && len(ids) > 0 {
				t.nssid = ids[len(ids)-1]
			}
		case "voluntary_ctxt_switches":
			s.switches = value
		}
	})
	t.threads++
	if asleep {
		t.asleep = append(t.asleep, s)
	}
	return err
}

func (t *task) readMappings(ctx context.Context, all *family) error {
	f, err := os.Open(t.path("maps"))
	if err != nil {
		return err
	}
	defer f.Close()
	last := ""
	return eachMapping(f, func(m mapping) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := filepath.Base(m.path)
		switch {
		case m.path == "[uprobes]":
			t.add(kindUprobes, "")
		case m.path == "anon_inode:[io_uring]":
			t.add(kindURing, "mapping at %x", m.start)
		case strings.HasPrefix(m.path, "anon_inode:"):
			t.add(kindAnon, "%s mapped at %x", strings.TrimPrefix(m.path, "anon_inode:"), m.start)
		case !strings.HasPrefix(m.path, "/"):
		case strings.HasPrefix(m.path, "/SYSV"):
			if all.root["ipc"] == all.self["ipc"] {
				t.add(kindSysV, "key %s at %x", strings.TrimPrefix(m.path, "/SYSV"), m.start)
			}
		case m.path == "/secretmem":
			t.add(kindSecret, "%d KiB at %x", (m.end-m.start)>>10, m.start)
		case m.path == "/[aio]",
			strings.HasPrefix(m.path, "/memfd:"),
			m.path == "/dev/zero",
			strings.HasPrefix(m.path, "/anon_hugepage"):
		case strings.HasPrefix(m.path, "/dev/nvidia"):
			t.gpu.mapped(m)
		case strings.HasPrefix(m.path, "/dev/shm/nccl-"):
			t.gpu.nccl = true
		case strings.HasPrefix(m.path, "/dev/shm/cuda.shm."):
			if maker, ok := ipcMaker(m.path); ok && !slices.Contains(t.gpu.ipc, maker) {
				t.gpu.ipc = append(t.gpu.ipc, maker)
			}
		case strings.HasPrefix(name, "xla_cuda_plugin"):
			t.gpu.xla = true
		case strings.HasPrefix(name, "libcuda.so"):
			t.gpu.library = true
		}
		// Others are looked at where they may be no ordinary file, or one without a name, once each.
		dev := m.shared || strings.HasPrefix(m.path, "/dev/")
		if strings.HasPrefix(m.path, "/") && (m.deleted || dev) && m.path != last && !ordinary(m.path) {
			last = m.path
			return t.judgeMapping(all, m)
		}
		return nil
	})
}

// judgeMapping looks at what is mapped.
func (t *task) judgeMapping(all *family, m mapping) error {
	span, name := fmt.Sprintf("%x-%x", m.start, m.end), m.path
	if m.deleted {
		name += " (deleted)"
	}
	return t.judgeFile(all, t.path("map_files", span), name, span, true)
}

// ordinary tells mappings without a file that could have been deleted or a device.
func ordinary(path string) bool {
	return path == "/dev/zero" || path == "/[aio]" || path == "/secretmem" ||
		strings.HasPrefix(path, "/SYSV") || strings.HasPrefix(path, "/memfd:") ||
		strings.HasPrefix(path, "/anon_hugepage") ||
		strings.HasPrefix(path, "/dev/nvidia")
}

func (t *task) readDescriptors(ctx context.Context, all *family) error {
	return t.eachNumber(ctx, "fd", func(fd int) error {
		link, err := os.Readlink(t.path("fd", strconv.Itoa(fd)))
		if errors.Is(err, unix.ENAMETOOLONG) {
			link, err = "/(a path of more than 4095 bytes)", nil
		}
		if err != nil {
			return err
		}
		return t.judgeDescriptor(all, fd, link)
	})
}

// dumped are the anonymous inodes that CRIU 4.2 dumps.
var dumped = []string{"eventfd", "eventpoll", "inotify", "fanotify", "timerfd", "signalfd"}

// namespaceFiles are descriptors of namespaces.
var namespaceFiles = []string{
	"mnt",
	"net",
	"ipc",
	"uts",
	"pid",
	"user",
	"time",
	"cgroup",
	"pid_for_children",
	"time_for_children",
}

func (t *task) judgeDescriptor(all *family, fd int, link string) error {
	kind, _, _ := strings.Cut(link, ":")
	switch {
	case kind == "socket":
		if ino, ok := inode(link, "socket"); ok {
			t.sockets = append(t.sockets, socket{fd, ino})
		}
	case kind == "anon_inode":
		name := strings.Trim(strings.TrimPrefix(link, "anon_inode:"), "[]")
		switch {
		case name == "io_uring":
			t.add(kindURing, "descriptor %d", fd)
		case name == "pidfd":
			return t.judgePidfd(all, fd)
		case !slices.Contains(dumped, name):
			t.add(kindAnon, "%s, descriptor %d", name, fd)
		}
	case kind == "pidfd":
		return t.judgePidfd(all, fd)
	case strings.HasPrefix(link, "/memfd:"), kind == "pipe", slices.Contains(namespaceFiles, kind):
	case strings.HasPrefix(link, "/"):
		return t.judgeFile(all, t.path("fd", strconv.Itoa(fd)), link, strconv.Itoa(fd), false)
	default:
		t.add(kindAnon, "%s, descriptor %d", link, fd)
	}
	return nil
}

// judgePidfd looks whose pidfd a descriptor is: 0 and -1 are processes that have ended, or of another pid namespace.
func (t *task) judgePidfd(all *family, fd int) error {
	f, err := os.Open(t.path("fdinfo", strconv.Itoa(fd)))
	if err != nil {
		return err
	}
	defer f.Close()
	of, thread := -1, false
	err = eachField(f, func(name, value string) {
		switch name {
		case "Pid":
			if n, err := strconv.Atoi(value); err == nil {
				of = n
			}
		case "flags":
			flags, err := strconv.ParseUint(value, 8, 64)
			thread = err == nil && flags&unix.O_EXCL != 0 // PIDFD_THREAD
		}
	})
	if thread || of >= 0 && !all.members[of] {
		t.add(kindPidfd, "of %d, descriptor %d", of, fd)
	}
	return err
}
