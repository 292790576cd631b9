package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// StartFunc makes a daemon that waits for who started it, as Spawn does.
type StartFunc = func(context.Context) (MountResult, error)

// ConnectOrStart gives access through the daemon of the store at dir; where none runs, start makes one. It has patience with a daemon that is just leaving or just starting,
// and little with others that hold the store.
func ConnectOrStart(ctx context.Context, dir string, start StartFunc) (*Session, error) {
	for begin := time.Now(); ; {
		s, ok, err := ConnectDaemon(ctx, dir)
		if ok {
			return s, nil
		}
		if err == nil {
			_, err = start(ctx)
		}
		if err == nil {
			continue
		}
		limit := patience
		if socket, serr := hasSocket(dir); serr == nil && socket {
			limit = handover
		}
		if index.ClassOf(err) != index.InUse || time.Since(begin) > limit {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// folder is a private folder of a restore or dump.
type folder string

// folderPrefix begins the names of private folders.
const folderPrefix = "gpucr-fs-"

// newFolder makes a folder for mount and work directory.
func newFolder() (folder, error) {
	dir, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return "", err
	}
	// The daemon knows a mount by its name without symlinks.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	for _, sub := range []string{imagesDir, workDir} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return folder(dir), nil
}

// clear removes the folder, with what a killed daemon left in it. A daemon that is alive may still be about to take the mount away.
func (f folder) clear() error {
	for end := time.Now().Add(handover); ; time.Sleep(10 * time.Millisecond) {
		err := f.remove()
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// remove removes the folder unless something is mounted in it: nothing is ever removed through a mount.
func (f folder) remove() error {
	images := filepath.Join(string(f), imagesDir)
	if _, err := fs.ClearStale(images); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Remove(images); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(string(f))
}

// sweepFolders removes the folders in which a daemon of the store at dir, killed, has left its mounts: who asked for them may have returned before. Preconditions: this
// process owns the store.
func sweepFolders(dir string) error {
	dead, err := fs.DeadMounts(dir)
	errs := []error{err}
	for _, images := range dead {
		if f := filepath.Dir(images); filepath.Base(images) == imagesDir && strings.HasPrefix(filepath.Base(f), folderPrefix) {
			errs = append(errs, folder(f).remove())
		}
	}
	return errors.Join(errs...)
}

// newID makes a name for a restore.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// attempts is how often a restore is tried whose daemon is killed before its processes run.
const attempts = 4

// RestoreOptions say how to restore.
type RestoreOptions struct {
	Checkpoint string
	Work       string // CRIU's work directory; a private one when empty
	Rate       int64
	RecordGPU  bool // see Serving
	Wait       bool // until resident
	// Start makes a daemon.
	Start StartFunc
	// Run restores with CRIU; it returns when the processes run. When the daemon is killed before that, it is called again.
	Run      func(context.Context, Prepared) error
	Progress func(Progress)
	// Again is told why Run is about to be called once more.
	Again func(error)
}

// RestoreFrom restores a checkpoint of the store at dir.
func RestoreFrom(ctx context.Context, dir string, o RestoreOptions) (RestoreStatus, error) {
	former := ""
	for try := 1; ; try++ {
		st, again, err := restoreOnce(ctx, dir, o, &former)
		if !again || try == attempts || ctx.Err() != nil {
			return st, err
		}
		o.Again(err)
		// What CRIU had made of the processes has ended; somebody has to reap it before their pids are free.
		select {
		case <-time.After(time.Duration(try) * 100 * time.Millisecond):
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}

// restoreOnce tries to restore, instead of the former attempt; again is set when the daemon was killed and nothing runs.
func restoreOnce(ctx context.Context, dir string, o RestoreOptions, former *string) (st RestoreStatus, again bool, err error) {
	s, err := ConnectOrStart(ctx, dir, o.Start)
	if err != nil {
		return st, errors.Is(err, ErrGone), err
	}
	defer s.Close()
	f, err := newFolder()
	if err != nil {
		return st, false, err
	}
	q := RestoreRequest{ID: newID(), Checkpoint: o.Checkpoint, Dir: string(f), Work: o.Work, Rate: o.Rate, RecordGPU: o.RecordGPU, Wait: o.Wait, Instead: *former}
	*former = q.ID
	runs := false
	st, err = converse(ctx, s, Restore, q, func(ctx context.Context, p Prepared) error {
		err := o.Run(ctx, p)
		runs = err == nil
		return err
	}, o.Progress)
	if err == nil {
		return st, false, nil // the daemon clears up
	}
	gone := errors.Is(err, ErrGone)
	if gone && runs {
		st, err = o.rejoin(ctx, dir, q.ID)
	}
	if cerr := f.clear(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("clear up: %w", cerr))
	}
	return st, gone && !runs, err
}

// rejoin finds a restore again whose daemon was killed after its processes ran. When the successor is done before it is found, all is well, or the guardian
// has ended the processes: that shows in them.
func (o *RestoreOptions) rejoin(ctx context.Context, dir, id string) (RestoreStatus, error) {
	st := RestoreStatus{ID: id, Adopted: true}
	if !o.Wait {
		return st, nil
	}
	for end := time.Now().Add(handover); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		s, ok, err := ConnectDaemon(ctx, dir)
		if err != nil {
			return st, err
		}
		if !ok {
			continue
		}
		found, err := RestoreWait.Do(ctx, s, RestoreWaitRequest{id}, Streams{Progress: o.Progress})
		s.Close()
		if index.ClassOf(err) != index.NotFound && !errors.Is(err, ErrGone) {
			return found, err
		}
	}
	return st, ctx.Err()
}

// ServeLazyPages has the daemon of the store at dir, which has it mounted, serve a restore's memory, and returns when all is resident. ready is called when CRIU may come.
// When ctx ends before CRIU has come nothing is left; afterwards the daemon goes on.
func ServeLazyPages(ctx context.Context, dir string, q LazyPagesRequest, ready func() error, progress func(Progress)) (RestoreStatus, error) {
	s, ok, err := ConnectDaemon(ctx, dir)
	if err == nil && !ok {
		err = &index.Error{Class: index.NotFound, Op: "lazy-pages", Checkpoint: q.Checkpoint, Err: errors.New("the daemon of this mount is gone"), Hint: "unmount and mount again"}
	}
	if err != nil {
		return RestoreStatus{}, err
	}
	defer s.Close()
	q.ID = newID()
	talk, cancel := context.WithCancel(ctx)
	defer cancel()
	var rerr error
	out := &passLines{f: func([]byte) {
		if rerr = ready(); rerr != nil {
			cancel()
		}
	}}
	st, err := LazyPages.Do(talk, s, q, Streams{Out: out, Progress: progress})
	if rerr != nil {
		return st, rerr
	}
	if errors.Is(err, ErrGone) {
		o := RestoreOptions{Wait: true, Progress: progress}
		return o.rejoin(ctx, dir, q.ID)
	}
	return st, err
}

// DumpOptions say how to dump.
type DumpOptions struct {
	Name   string
	Tags   []string
	Labels map[string]string
	// Start makes a daemon.
	Start StartFunc
	// Run dumps with CRIU into the directory.
	Run func(ctx context.Context, images string) error
}

// DumpInto dumps into a new checkpoint of the store at dir.
func DumpInto(ctx context.Context, dir string, o DumpOptions) (Brief, error) {
	s, err := ConnectOrStart(ctx, dir, o.Start)
	if err != nil {
		return Brief{}, err
	}
	defer s.Close()
	f, err := newFolder()
	if err != nil {
		return Brief{}, err
	}
	res, err := converse(ctx, s, Dump, DumpRequest{Name: o.Name, Tags: o.Tags, Labels: o.Labels, Dir: string(f)}, func(ctx context.Context, p Prepared) error {
		return o.Run(ctx, p.Images)
	}, nil)
	return res, errors.Join(err, f.clear())
}
