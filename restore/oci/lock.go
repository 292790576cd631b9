package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// UserDirVar names the folder in which runc has its own, for users other than root.
const UserDirVar = "XDG_RUNTIME_DIR"

// knownID is what runtimes take as the name of a container. It is no path.
var knownID = regexp.MustCompile(`^[\w+.-]*[\w+-][\w+.-]*$`)

// stateFolder is where the runtime keeps what it knows of the call's container: below its option --root, or where runc
// has it without one. userDir is the value of UserDirVar, which counts for users other than root. "" for what can
// be no container.
func (c Call) stateFolder(userDir string) string {
	if !knownID.MatchString(c.ID) {
		return ""
	}
	root := c.Global("root")
	if root == "" && userDir != "" && os.Geteuid() != 0 {
		root = filepath.Join(userDir, "runc")
	}
	if root == "" {
		root = "/run/runc"
	}
	return filepath.Join(root, c.ID)
}

// Lock is held by the checkpoint or restore of a container, or by what must not be done beside one. It ends with its
// process. The file tells which processes a restore has made.
type Lock struct {
	file   *os.File
	folder string    // of the container's state
	noted  []process // in the file
	unfit  bool      // the file tells of processes that are not known to have ended
}

// ErrBusy says that another call has the lock of the container.
var ErrBusy = errors.New("a checkpoint or restore of it goes on: wait for its end")

// lockSuffix makes the name of the lock's file from that of the container's folder. No container has such a name, and
// runc lists only folders.
const lockSuffix = "~lock"

// pause is how long to wait before a lock is tried again.
const pause = 20 * time.Millisecond

// lockWait is how long a lock is waited for. A restore that was killed ends sooner, as a rule.
const lockWait = 20 * time.Second

// Lock takes the lock of the call's container, and waits 20 s for it. ErrBusy when another process has it still.
// userDir is the value of UserDirVar.
func (c Call) Lock(ctx context.Context, userDir string) (*Lock, error) {
	return lock(ctx, c.ID, c.stateFolder(userDir), lockWait)
}

func lock(ctx context.Context, id, folder string, wait time.Duration) (*Lock, error) {
	if folder == "" {
		return nil, fmt.Errorf("%q can be no container's name", id)
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return nil, err
	}
	const flags = os.O_RDWR | os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	for end := time.Now().Add(wait); ; {
		f, err := os.OpenFile(folder+lockSuffix, flags, 0o600)
		if err == nil {
			err = ours(f)
		}
		if err != nil {
			f.Close() // it may be nil
			return nil, fmt.Errorf("lock container %s: %w", id, notOurs(folder+lockSuffix, err))
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f) {
			st, err := f.Stat()
			return &Lock{file: f, folder: folder, unfit: err != nil || st.Size() > 0}, nil
		}
		f.Close()
		if err == nil {
			continue // its last owner has removed it
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, fmt.Errorf("lock container %s: %w", id, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("container %s: %w", id, ErrBusy)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// errOthers says that the file of a lock may be another user's. It names processes that are ended.
var errOthers = errors.New("another user may have made this file")

// ours refuses what this package does not make in the place of a lock's file. A file that was removed just now has no
// name.
func ours(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Nlink > 1 {
		return errOthers
	}
	return nil
}

// notOurs adds to an error what to do about a file that this package has not made.
func notOurs(file string, err error) error {
	if errors.Is(err, errOthers) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) ||
		errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%w: look who made it, and remove %s", err, file)
	}
	return err
}

// sameFile tells whether a file is still there under its name.
func sameFile(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, there)
}

// Complete tells whether the container is there by its state, though the runtime may fail to tell it.
func (l *Lock) Complete() bool { return there(filepath.Join(l.folder, stateFile)) }

// Left tells whether a restore of the container was killed before it could say that the container runs.
func (l *Lock) Left() bool { return l.unfit }

// Release ends the lock. Its file stays where Clear could not do its work. Later calls do nothing.
func (l *Lock) Release() (err error) {
	if l.file == nil {
		return nil
	}
	if !l.unfit {
		err = os.Remove(l.file.Name())
	}
	err = errors.Join(err, unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
	l.file = nil
	return err
}

// Clear ends and removes what a restore that was killed has left: criu and the tasks that it was making, criu's mounts
// of cgroups, runc's mount of the container's root, through which runc would remove the root, and a state folder that
// says nothing. A container that is there keeps its state.
func (l *Lock) Clear() error {
	l.unfit = true
	if err := l.endLeft(); err != nil {
		return err
	}
	// criu makes an empty folder in the root, for the time in which it changes roots.
	roots, err := begin(filepath.Join(l.folder, mountPoint), "crtools-put-root.")
	if err != nil {
		return err
	}
	for _, dir := range roots {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY && err != unix.ENOTDIR {
			return fmt.Errorf("remove %s, which a killed restore has left: %w", dir, err)
		}
	}
	if err := detach(l.folder); err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	l.noted, l.unfit = nil, false
	if l.Complete() {
		return nil
	}
	halves, err := begin(l.folder, stateHalf)
	if err != nil {
		return err
	}
	err = unix.Rmdir(filepath.Join(l.folder, mountPoint))
	early := err == unix.ENOENT // runc was killed before it made it, or there is nothing of a restore
	for _, f := range halves {
		if err == nil || early {
			err = unix.Unlink(f)
		}
	}
	if err == nil || early {
		err = unix.Rmdir(l.folder)
	}
	if err != nil && err != unix.ENOENT && !(early && err == unix.ENOTEMPTY) {
		return fmt.Errorf("remove what a killed restore has left in %s: %w", l.folder, err)
	}
	return nil
}

// Names in the folder of a container's state.
const (
	stateFile  = "state.json" // written when the container is there
	stateHalf  = "state-"     // begins its name while it is being written
	mountPoint = "criu-root"  // where runc mounts the container's root for criu
)

// detach undoes what is mounted for criu in the folder of a container's state.
func detach(folder string) error { return unmountAll(filepath.Join(folder, mountPoint)) }

// begin gives the paths in a folder whose names begin with a prefix, none where there is no such folder.
func begin(folder, prefix string) (all []string, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			all = append(all, filepath.Join(folder, e.Name()))
		}
	}
	return all, err
}

// unmountAll undoes all mounts at a path. It follows no link, and nothing that is mounted. Where mounts are shared, a
// mount below is a peer of the one that it is a copy of, which would be unmounted with it.
func unmountAll(at string) error {
	if st, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return nil
	}
	for {
		err := unix.Mount("", at, "", unix.MS_PRIVATE|unix.MS_REC, "")
		if err == nil {
			err = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err == unix.EINVAL || err == unix.ENOENT { // nothing is mounted
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s, which a killed restore has left: %w", at, err)
		}
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// BeforeDelete prepares that the runtime removes the call's container, if that is what the call is for: it ends what a
// killed restore has left, and unmounts what the runtime would empty. ErrBusy while a restore needs that. The lock that
// it gives, nil when there is no need of one, keeps restores of the container from beginning until the runtime is done:
// the runtime removes whatever is there under the ID when it knows no such container.
func (c Call) BeforeDelete(userDir string) (*Lock, error) {
	folder := c.stateFolder(userDir)
	if c.Command != Delete || folder == "" || !there(filepath.Dir(folder)) {
		return nil, nil
	}
	wait, exists := lockWait, there(filepath.Join(folder, stateFile))
	if exists {
		wait = 0
	}
	if exists && !there(folder+lockSuffix) && !there(filepath.Join(folder, mountPoint)) {
		return nil, nil
	}
	l, err := lock(context.Background(), c.ID, folder, wait)
	if err != nil && !errors.Is(err, ErrBusy) && !there(folder+lockSuffix) {
		return nil, detach(folder) // on a full disk: no restore could make the file, either
	}
	stays := errors.Is(err, ErrBusy)
	if exists && err == nil && !c.Has("force") {
		if stays, err = runs(folder); err != nil {
			return nil, errors.Join(err, l.Release())
		}
	}
	if exists && stays {
		// The restore is in its last steps, in which criu needs the mount no more; or the runtime will refuse.
		if l != nil {
			err = l.Release()
		}
		return nil, errors.Join(ignoreBusy(err), detach(folder))
	}
	if err != nil {
		return nil, err
	}
	if err := l.Clear(); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

func ignoreBusy(err error) error {
	if errors.Is(err, ErrBusy) {
		return nil
	}
	return err
}

// runs tells whether the first process of a container is there, by the container's state.
func runs(folder string) (bool, error) {
	text, err := readAtMost(filepath.Join(folder, stateFile), maxState)
	var state struct {
		PID   int    `json:"init_process_pid"`
		Began uint64 `json:"init_process_start"` // as of process
	}
	if err != nil || json.Unmarshal(text, &state) != nil || state.PID <= 0 {
		return false, nil
	}
	return process{state.PID, state.Began}.alive()
}

// maxState is how large a container's state may be, in bytes.
const maxState = 16 << 20
