package preflight

import (
	"errors"
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

// judgeFile looks at what is open or mapped by a link of /proc that leads to it. path is what the kernel calls it.
func (t *task) judgeFile(all *family, link, path string, deleted, mapped bool) error {
	if strings.HasPrefix(path, "/dev/nvidia") && !mapped {
		t.gpu.opened(path)
		return nil
	}
	if path == "/secretmem" {
		t.add(kindSecret, "descriptor %s", filepath.Base(link))
		return nil
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || mapped && errors.Is(err, unix.EPERM) {
			return nil
		}
		return &os.PathError{Op: "statx", Path: link, Err: err}
	}
	fd := filepath.Base(link)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return t.judgeDevice(all, path, fd, int(st.Rdev_major), int(st.Rdev_minor), mapped)
	case unix.S_IFBLK:
		if mapped {
			t.add(kindDeviceMap, "%s", path)
		} else {
			t.add(kindBlock, "%s, descriptor %s", path, fd)
		}
		return nil
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	default:
		return nil
	}
	f := file{st.Dev_major, st.Dev_minor, st.Ino}
	if st.Mask&unix.STATX_MNT_ID != 0 && !mapped && !all.mounts[int(st.Mnt_id)] && !all.o.has("external") {
		t.add(kindMount, "%s, descriptor %s", path, fd)
		return nil
	}
	if deleted && !t.files[f] {
		t.files[f] = true
		switch size := int64(st.Blocks) * 512; {
		case st.Nlink > 0:
			if !all.o.has("link-remap") {
				t.add(kindLinked, "%s", path)
			}
		case size > all.ghostLimit && st.Mode&unix.S_IFMT == unix.S_IFREG:
			t.add(kindGhost, "%s of %d KiB", path, size>>10)
		}
	}
	if !mapped && all.locked[f] && !all.o.has("file-locks") {
		return t.judgeLock(path, fd)
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
