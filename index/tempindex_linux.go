package index

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/scratch"
)

// tempPrefix begins the names of folders that hold the index of a store open for reading only.
const tempPrefix = "gpucr-fs-index-"

// newTempIndex makes a folder on a file system with so many bytes free: where temporary files go (TMPDIR), else in
// memory.
func newTempIndex(room int64) (*scratch.Dir, error) {
	var why []string
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		var st unix.Statfs_t
		if err := unix.Statfs(parent, &st); err != nil {
			why = append(why, fmt.Sprintf("%s: %v", parent, err))
			continue
		}
		if free := int64(st.Bavail) * st.Bsize; free < room {
			why = append(why, fmt.Sprintf("%s has %d MiB free", parent, free>>20))
			continue
		}
		t, err := scratch.Make(parent, tempPrefix)
		if err == nil {
			return t, nil
		}
		why = append(why, err.Error())
	}
	return nil, noRoomForIndex(strings.Join(why, ", "), room)
}

func noRoomForIndex(why string, room int64) error {
	return &fault.Error{Class: fault.NoSpace, Op: "open store",
		Err:  fmt.Errorf("its index has to be copied to be read, which takes up to %d MiB: %s", room>>20, why),
		Hint: fmt.Sprintf("point TMPDIR to a folder with %d MiB free", room>>20)}
}
