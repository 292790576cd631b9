package pidns

import (
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// storeMount is the type of mounts of stores in mountinfo.
const storeMount = "fuse.gpucr-fs"

// detachStores detaches the mounts of stores in the calling thread's mount namespace; proc is a /proc that knows
// the thread.
func detachStores(proc *os.File) error {
	const name = "thread-self/mountinfo"
	fd, err := unix.Openat(int(proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	points := storeMounts(string(text))
	for _, p := range slices.Backward(points) {
		err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && err != unix.EINVAL && err != unix.ENOENT { // the host has just unmounted it
			return &os.PathError{Op: "unmount", Path: p, Err: err}
		}
	}
	return nil
}

// unescape takes back what mountinfo does to names.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func storeMounts(mountinfo string) (points []string) {
	for line := range strings.Lines(mountinfo) {
		head, tail, _ := strings.Cut(line, " - ")
		if f := strings.Fields(head); len(f) > 4 && strings.HasPrefix(tail, storeMount+" ") {
			points = append(points, unescape.Replace(f[4]))
		}
	}
	return points
}
