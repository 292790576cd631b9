package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Major numbers of character devices, see Linux's devices.txt.
const (
	majorMemory    = 1
	majorTTY       = 4
	majorTTYAux    = 5
	majorMisc      = 10
	majorPtyMaster = 128 // 8 of them
	majorPtySlave  = 136
	majorUSBSerial = 188
	majorSerial    = 204
)

const (
	miscTUN      = 200
	miscAutofs   = 235
	maxConsole   = 63
	auxPtmx      = 2
	devZeroMinor = 5
)

// sight is what was found at a link of /proc that leads to a file.
type sight struct {
	path    string // as the kernel calls it
	deleted bool
	st      unix.Statx_t
}

// named takes apart what the kernel calls a file.
func named(name string) (s sight) {
	s.path, s.deleted = strings.CutSuffix(name, " (deleted)")
	return s
}

func (s *sight) file() file { return file{s.st.Dev_major, s.st.Dev_minor, s.st.Ino} }

func (s *sight) stat(dir int, path string, flags int) error {
	err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &s.st)
	if err != nil {
		return &os.PathError{Op: "statx", Path: s.path, Err: err}
	}
	return nil
}

// glance looks at what is behind a link that said name before. The program goes on: it may be another file by now.
func glance(link, name string) (sight, error) {
	s := named(name)
	err := s.stat(unix.AT_FDCWD, link, 0)
	return s, err
}

// hold is glance at one file, name and nature. With O_PATH neither a driver nor who watches the file notices, but for
// this moment its file system cannot be unmounted. A name that is longer than a link can tell is taken to be the one
// that is known.
func hold(link, name string) (sight, error) {
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return sight{}, &os.PathError{Op: "open", Path: link, Err: err}
	}
	defer unix.Close(fd)
	now, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(fd)))
	if errors.Is(err, unix.ENAMETOOLONG) {
		now, err = name, nil
	}
	if err != nil {
		return sight{}, err
	}
	s := named(now)
	err = s.stat(fd, "", unix.AT_EMPTY_PATH)
	return s, err
}

// fact is a finding before it is sure.
type fact struct{ kind, text string }

func factOf(kind, format string, args ...any) []fact {
	return []fact{{kind, fmt.Sprintf(format, args...)}}
}

// judgeFile looks at a file that is open or mapped, by a link of /proc that leads to it and said name before. where is
// the descriptor or the range. What is to be told is looked at once more, held: few files are.
func (t *task) judgeFile(all *family, link, name, where string, mapped bool) error {
	if s := named(name); strings.HasPrefix(s.path, "/dev/nvidia") && !mapped {
		t.gpu.opened(s.path)
		return nil
	} else if s.path == "/secretmem" {
		t.add(kindSecret, "descriptor %s", where)
		return nil
	}
	var facts []fact
	var of file
	for _, look := range []func(link, name string) (sight, error){glance, hold} {
		s, err := look(link, name)
		if gone(err) || mapped && errors.Is(err, unix.EPERM) {
			return nil
		}
		if err != nil {
			return err
		}
		if !strings.HasPrefix(s.path, "/") || ordinary(s.path) {
			return nil // the program has put something else there since
		}
		if facts, err = t.facts(all, &s, where, mapped); err != nil || len(facts) == 0 {
			return err
		}
		of = s.file()
	}
	t.files[of] = true
	for _, f := range facts {
		t.add(f.kind, "%s", f.text)
	}
	return nil
}

// facts tells what criu cannot dump of a file.
func (t *task) facts(all *family, s *sight, where string, mapped bool) (out []fact, err error) {
	st := &s.st
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return t.judgeDevice(all, s.path, where, int(st.Rdev_major), int(st.Rdev_minor), mapped)
	case unix.S_IFBLK:
		if mapped {
			return factOf(kindDeviceMap, "%s", s.path), nil
		}
		return factOf(kindBlock, "%s, descriptor %s", s.path, where), nil
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	default:
		return nil, nil
	}
	if st.Mask&unix.STATX_MNT_ID != 0 && !mapped && !all.mounts[int(st.Mnt_id)] && !all.o.has("external") {
		return factOf(kindMount, "%s, descriptor %s", s.path, where), nil
	}
	if s.deleted && !t.files[s.file()] {
		switch size := int64(st.Blocks) * 512; {
		case st.Nlink > 0:
			if !all.o.has("link-remap") {
				out = factOf(kindLinked, "%s", s.path)
			}
		case size > all.ghostLimit && st.Mode&unix.S_IFMT == unix.S_IFREG:
			out = factOf(kindGhost, "%s of %d KiB", s.path, size>>10)
		}
	}
	if !mapped && all.locked[s.file()] && !all.o.has("file-locks") {
		is, err := t.isLocked(where)
		if err != nil {
			return nil, err
		}
		if is {
			out = append(out, factOf(kindFileLock, "%s, descriptor %s", s.path, where)...)
		}
	}
	return out, nil
}

// isLocked looks whether it is this descriptor that a lock of a file belongs to.
func (t *task) isLocked(fd string) (is bool, err error) {
	f, err := os.Open(t.path("fdinfo", fd))
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = eachField(f, func(name, _ string) { is = is || name == "lock" })
	return is, err
}

func (t *task) judgeDevice(all *family, path, fd string, major, minor int, mapped bool) ([]fact, error) {
	if mapped {
		if (major != majorMemory || minor != devZeroMinor) && !t.plugin(all, path) {
			return factOf(kindDeviceMap, "%s", path), nil
		}
		return nil, nil
	}
	switch {
	case major == majorMemory:
	case major == majorMisc && (minor == miscTUN || minor == miscAutofs):
	case major == majorTTY && minor <= maxConsole && minor > 0,
		major == majorTTYAux && minor < auxPtmx,
		major == majorUSBSerial,
		major == majorSerial:
	case major == majorPtySlave:
		t.slaves = append(t.slaves, minor)
	case major == majorTTYAux && minor == auxPtmx, major >= majorPtyMaster && major < majorPtySlave:
		return nil, t.readMaster(fd)
	case !t.plugin(all, path):
		return factOf(kindDevice, "%s, descriptor %s", path, fd), nil
	}
	return nil, nil
}

// plugin tells whether a plugin of CRIU's takes care of a device: which those of a folder that the user names do, is
// not known.
func (t *task) plugin(all *family, path string) bool {
	return all.o.has("libdir") || all.o.AMD && (path == "/dev/kfd" || strings.HasPrefix(path, "/dev/dri/"))
}

// readMaster learns which terminal a descriptor is the master of.
func (t *task) readMaster(fd string) error {
	f, err := os.Open(t.path("fdinfo", fd))
	if err != nil {
		return err
	}
	defer f.Close()
	return eachField(f, func(name, value string) {
		if name != "tty-index" {
			return
		}
		if n, err := strconv.Atoi(value); err == nil {
			t.masters = append(t.masters, n)
		}
	})
}
