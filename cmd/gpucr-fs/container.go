package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/index/scratch"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/oci"
)

// pluginDirVar is where criu takes the folder of its plugins from, when no option says it. An OCI runtime has no option
// for it.
const pluginDirVar = "CRIU_LIBS_DIR"

// container is one that an OCI runtime dumps or restores: the runtime calls criu, as it does by itself.
type container struct {
	call    oci.Call
	conf    oci.Config
	runtime string // its path
	criu    string // criu's path
	name    string // of the checkpoint
	ref     oci.Reference

	place      *oci.Place // the caller's image directory, for a dump
	dumped     bool       // the images are complete, and the container has ended if it is to
	unreferred error      // why the caller's image directory does not stand for them
	pid        int
	running    *runtimeProcess // one in the foreground
	lock       *oci.Lock
}

// env is the environment of the runtime, and so of criu: what this program has, with criu first in the PATH, and more.
func (c *container) env(more ...string) []string {
	env := append(os.Environ(), more...)
	if exe, err := os.Executable(); err == nil && os.Getenv("GPUCR_FS") == "" {
		env = append(env, "GPUCR_FS="+exe)
	}
	return append(env, "PATH="+filepath.Dir(c.criu)+":"+os.Getenv("PATH"))
}

// runtimeProcess is a runtime that does its work.
type runtimeProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once done is closed
}

// start runs the runtime with args. It is killed when this program is. For a dump criu asks it before it ends the
// processes, and lets them go on when it is gone. For a restore criu and its tasks stay: the lock's file tells the next
// call for the container which they are. The runtime does not get that file: its hooks would have it, too, and some
// leave processes that stay.
func (c *container) start(args, env []string, own bool) (*runtimeProcess, error) {
	cmd := exec.Command(c.runtime, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: own, Pdeathsig: syscall.SIGKILL}
	p := &runtimeProcess{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig comes when the thread ends that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", c.runtime, err)
	}
	return p, nil
}

func (p *runtimeProcess) wait() error {
	<-p.done
	return p.err
}

// explain says why the runtime failed: by the errors in criu's log where there are any. What the runtime itself said
// went to its log and to stderr.
func (c *container) explain(err error, work, log string) error {
	err = fmt.Errorf("%s %s: %w", filepath.Base(c.runtime), c.call.Command, err)
	if work == "" {
		return err
	}
	if failure := restore.Logged(c.criu, filepath.Join(work, log)); failure != nil {
		return fmt.Errorf("%w: %w", err, failure)
	}
	return err
}

// dump has the runtime dump its container into images. It is not to be interrupted: when the images cannot be written
// any more, criu lets the processes go on.
func (c *container) dump(images string, env []string) error {
	work := c.call.Value("work-path")
	call := c.call.With("image-path", images)
	if work == "" {
		dir, done, err := c.workDir()
		if err != nil {
			return err
		}
		defer done()
		work, call = dir, call.With("work-path", dir)
	}
	before := time.Now()
	p, err := c.start(call.Args(), c.env(env...), true)
	if err != nil {
		return err
	}
	if err := p.wait(); err != nil {
		if !newer(filepath.Join(work, "dump.log"), before) {
			work = "" // criu was not run
		}
		return c.explain(err, work, "dump.log")
	}
	// The images are in the store whatever becomes of the image directory.
	c.dumped, c.unreferred = true, c.place.Refer(images)
	return nil
}

func newer(file string, than time.Time) bool {
	st, err := os.Stat(file)
	return err == nil && st.ModTime().After(than.Add(-time.Second))
}

// workDir makes a work directory for criu, where the caller gave none.
func (c *container) workDir() (string, func(), error) {
	dir, err := scratch.Make(os.TempDir(), "gpucr-fs-container-")
	if err != nil {
		return "", nil, err
	}
	return dir.Path(), func() { dir.Close() }, nil
}

// restore has the runtime restore its container, and returns when it runs.
func (c *container) restore(ctx context.Context, p talk.Prepared, env []string) error {
	if err := c.ref.Verify(p.Images); err != nil {
		return err
	}
	call := c.call.With("image-path", p.Images).With("work-path", p.Work).With("lazy-pages", "")
	pidfile := call.Value("pid-file")
	if pidfile == "" {
		dir, done, err := c.workDir()
		if err != nil {
			return err
		}
		defer done()
		pidfile = filepath.Join(dir, "pid")
		call = call.With("pid-file", pidfile)
	} else if err := os.Remove(pidfile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // a former one would be taken for the new one's
	}
	mark, err := c.lock.Begin(p.Work)
	if err != nil {
		return err
	}
	detached := c.call.Has("detach")
	run, err := c.start(call.Args(), c.env(append(env, mark)...), detached)
	if err != nil {
		return err
	}
	if !detached {
		c.running = run
	}
	watched := false
	for {
		if !watched {
			if watched, err = c.lock.Watch(run.cmd.Process.Pid); err != nil {
				return errors.Join(err, c.giveUp(run))
			}
		}
		over := false
		select {
		case <-run.done:
			over = true
		default:
		}
		pid, perr := readPID(pidfile) // the runtime may write it and end at any time: first the end is looked for
		switch {
		case over && run.err != nil:
			return errors.Join(c.explain(run.err, p.Work, "restore.log"), c.lock.Clear())
		case perr == nil && (over || !detached):
			c.pid = pid
			return nil
		case over:
			return fmt.Errorf("%s wrote no pid: %w", c.runtime, perr)
		}
		select {
		case <-run.done:
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), c.giveUp(run))
		}
	}
}

// giveUp ends a restore that is under way.
func (c *container) giveUp(run *runtimeProcess) error {
	run.cmd.Process.Kill()
	<-run.done
	return c.end()
}

func readPID(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// end removes a container that was restored and cannot go on. What the runtime has mounted, if it was killed, goes
// first: the runtime would empty it.
func (c *container) end() error {
	if err := c.lock.Clear(); err != nil {
		return err
	}
	return c.do(oci.Delete, "--force")
}

// do runs another of the runtime's commands for the container.
func (c *container) do(command string, options ...string) error {
	out, err := exec.Command(c.runtime, c.call.Other(command, options...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s container %s: %w: %s", command, c.call.ID, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// foreground waits for the end of a container that was restored without --detach, as the runtime does, and hands
// signals on to it.
func (c *container) foreground() error {
	if c.running == nil {
		return nil
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	var handing sync.WaitGroup
	handing.Go(func() {
		for {
			select {
			case s := <-signals:
				if s != syscall.SIGCHLD && s != syscall.SIGURG && s != syscall.SIGPIPE {
					c.running.cmd.Process.Signal(s)
				}
			case <-c.running.done:
				return
			}
		}
	})
	handing.Wait()
	signal.Stop(signals)
	err := c.running.wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return ended(exit.ExitCode())
	}
	return err
}

// ended is the exit code of a container in the foreground, which becomes this program's. There is nothing to say about
// it.
type ended int

func (e ended) Error() string { return fmt.Sprintf("the container ended with %d", int(e)) }
