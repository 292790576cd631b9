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

// nothing is no file that hold has opened.
const nothing = -1

// hold opens what a link of /proc leads to, so that its name and its nature are those of one file, and tells the name.
// With O_PATH neither a driver nor who watches the file notices; no file system is asked, which might hang. A name that
// is longer than a link can tell is the one that is known.
func hold(link, known string) (fd int, name string, err error) {
	fd, err = unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nothing, "", &os.PathError{Op: "open", Path: link, Err: err}
	}
	name, err = os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(fd)))
	if errors.Is(err, unix.ENAMETOOLONG) {
		name, err = known, nil
	}
	if err != nil {
		return nothing, "", errors.Join(err, unix.Close(fd))
	}
	return fd, name, nil
}

// judgeMapping looks at what is mapped.
func (t *task) judgeMapping(all *family, m mapping) error {
	span, known := fmt.Sprintf("%x-%x", m.start, m.end), m.path
	if m.deleted {
		known += " (deleted)"
	}
	fd, name, err := hold(t.path("map_files", span), known)
	if gone(err) || errors.Is(err, unix.EPERM) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if ordinary(name) { // the program has mapped something else there since
		return nil
	}
	return t.judgeFile(all, fd, name, span, true)
}

// judgeFile looks at a file that is open or mapped. name is what the kernel calls it, and where the descriptor or the
// range.
func (t *task) judgeFile(all *family, held int, name, where string, mapped bool) error {
	path, deleted := strings.CutSuffix(name, " (deleted)")
	if strings.HasPrefix(path, "/dev/nvidia") && !mapped {
		t.gpu.opened(path)
		return nil
	}
	if path == "/secretmem" {
		t.add(kindSecret, "descriptor %s", where)
		return nil
	}
	var st unix.Statx_t
	err := unix.Statx(held, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil {
		return &os.PathError{Op: "statx", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return t.judgeDevice(all, path, where, int(st.Rdev_major), int(st.Rdev_minor), mapped)
	case unix.S_IFBLK:
		if mapped {
			t.add(kindDeviceMap, "%s", path)
		} else {
			t.add(kindBlock, "%s, descriptor %s", path, where)
		}
		return nil
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	default:
		return nil
	}
	id := file{st.Dev_major, st.Dev_minor, st.Ino}
	if st.Mask&unix.STATX_MNT_ID != 0 && !mapped && !all.mounts[int(st.Mnt_id)] && !all.o.has("external") {
		t.add(kindMount, "%s, descriptor %s", path, where)
		return nil
	}
	if deleted && !t.files[id] {
		t.files[id] = true
		switch size := int64(st.Blocks) * 512; {
		case st.Nlink > 0:
			if !all.o.has("link-remap") {
				t.add(kindLinked, "%s", path)
			}
		case size > all.ghostLimit && st.Mode&unix.S_IFMT == unix.S_IFREG:
			t.add(kindGhost, "%s of %d KiB", path, size>>10)
		}
	}
	if !mapped && all.locked[id] && !all.o.has("file-locks") {
		return t.judgeLock(path, where)
	}
	return nil
}

// judgeLock looks whether it is this descriptor that a lock of a file belongs to.
func (t *task) judgeLock(path, fd string) error {
	f, err := os.Open(t.path("fdinfo", fd))
	if err != nil {
		return err
	}
	defer f.Close()
	return eachField(f, func(name, _ string) {
		if name == "lock" {
			t.add(kindFileLock, "%s, descriptor %s", path, fd)
		}
	})
}

func (t *task) judgeDevice(all *family, path, fd string, major, minor int, mapped bool) error {
	if mapped {
		if (major != majorMemory || minor != devZeroMinor) && !t.plugin(all, path) {
			t.add(kindDeviceMap, "%s", path)
		}
		return nil
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
		return t.readMaster(fd)
	case !t.plugin(all, path):
		t.add(kindDevice, "%s, descriptor %s", path, fd)
	}
	return nil
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
