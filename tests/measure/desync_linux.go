package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// desyncTime is how long desync mount-index may take before it serves.
const desyncTime = time.Minute

// MountDesync mounts what an index of desync, the program at the path desync, tells of a store, on the folder mnt,
// which it makes. Store and index are paths or addresses; env is the program's environment, nil for that of this
// process. It gives the path of the file, and done, which unmounts it.
func MountDesync(desync string, env []string, store, index, mnt string) (file string, done func() error, err error) {
	if err := os.MkdirAll(mnt, 0o755); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(desync, "mount-index", "-s", store, index, mnt)
	cmd.Env = env
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	done = func() error {
		// It unmounts on SIGINT; what it then exits with says nothing about the reads.
		err := cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		if umountErr := unix.Unmount(mnt, unix.MNT_DETACH); umountErr != nil && !errors.Is(umountErr, unix.EINVAL) {
			err = errors.Join(err, umountErr)
		}
		return err
	}
	for end := time.Now().Add(desyncTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if names, err := filepath.Glob(filepath.Join(mnt, "*")); err == nil && len(names) == 1 {
			return names[0], done, nil
		}
	}
	err = done()
	return "", nil, errors.Join(fmt.Errorf("desync mount-index does not serve: %s", &said), err)
}
