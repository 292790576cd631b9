package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/scratch"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
	"github.com/gpucr/gpucr-fs/restore/lastread"
)

// Options say how to run CRIU.
type Options struct {
	// Program is CRIU's path, or a name to look for where programs are.
	Program string
	// Args are what the user wants of it.
	Args Args
	// Stdin is passed on: --shell-job needs the terminal. Stdout and Stderr are for action scripts. nil: /dev/null.
	Stdin, Stdout, Stderr *os.File
	// Env is added to CRIU's environment, which is this process's otherwise.
	Env []string
	// Within is another pid namespace to run CRIU in; nil: this process's.
	Within Within
	// EndTree ends a process and all below it: CRIU, when a restore is given up, with the tasks it is making, or what a
	// CRIU that was killed has left.
	EndTree func(pid int) error
}

// Within is a pid namespace that CRIU is to run in, with a mount namespace that goes with it.
type Within interface {
	// Do calls f where children are born in these namespaces.
	Do(f func() error) error
	// Init is its first process, which adopts.
	Init() int
	// Proc is this process's /proc: CRIU opens its images through it.
	Proc() *os.File
	// End ends all that is there when CRIU did not do its work, unless it was there before.
	End() error
}

// CRIU is one CRIU process, which does one thing. Start makes it; Close must be called.
type CRIU struct {
	program string
	args    Args
	within  Within
	proc    int // the number that Within's Proc has in CRIU
	end     func(pid int) error
	cmd     *exec.Cmd
	began   uint64 // see ticks
	sock    *os.File
	temp    *scratch.Dir // folder of the configuration file
	marks   []Mark
	said    said
	worked  bool                        // it has done what it was asked for
	keeps   bool                        // see Keep
	holds   func(context.Context) error // see Hold
	exited  chan struct{}
	once    sync.Once
}

// said keeps the beginning of what CRIU writes before it has a log. Only the goroutine that waits for its end writes;
// it is read after that.
type said struct{ text []byte }

func (s *said) Write(b []byte) (int, error) {
	s.text = append(s.text, b[:min(len(b), 1000-len(s.text))]...)
	return len(b), nil
}

// lastWord is how long an answer is waited for when CRIU has ended.
const lastWord = 200 * time.Millisecond

// pipeSize is what a pipe holds as a rule: pipe(7).
const pipeSize = 64 << 10

// maxMessage bounds a message from CRIU; its own are a few hundred bytes.
const maxMessage = 64 << 10

// Find looks for CRIU's program as a shell does, and in the folders that only root has in its path.
func Find(program string) (string, error) {
	p, err := exec.LookPath(program)
	if err == nil {
		return filepath.Abs(p)
	}
	if !strings.Contains(program, "/") {
		for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
			if p, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
				return p, nil
			}
		}
	}
	return "", &diagnosis.Failure{Cause: fmt.Sprintf("find criu: %v", err), Hint: noCRIU}
}

// Validate looks for the program and for the descriptors that it is to inherit.
func (o Options) Validate() error {
	for _, in := range o.Args.inherit {
		if _, err := unix.FcntlInt(uintptr(in.fd), unix.F_GETFD, 0); err != nil {
			return fmt.Errorf("descriptor %d of --inherit-fd: %w", in.fd, err)
		}
	}
	_, err := Find(o.Program)
	return err
}

// Start starts CRIU. It waits for a call of Restore or Dump. Until it has worked or is closed, processes that CRIU
// leaves become this process's children. So there is one CRIU at a time, except in pid namespaces of their own.
func Start(o Options) (*CRIU, error) {
	program, err := Find(o.Program)
	if err != nil {
		return nil, err
	}
	temp, err := scratch.Make(os.TempDir(), "gpucr-fs-conf-")
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		temp.Close()
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "criu")
	defer theirs.Close()
	c := &CRIU{program: program, args: o.Args.clone(), within: o.Within, end: o.EndTree,
		sock: os.NewFile(uintptr(fds[0]), "criu"), temp: temp, exited: make(chan struct{})}
	// CRIU's end must block.
	if err := unix.SetNonblock(fds[1], false); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	const socketFD = 3
	cmd := exec.Command(program, "swrk", fmt.Sprint(socketFD))
	cmd.Stdin, cmd.Env = file(o.Stdin), append(cmd.Environ(), o.Env...)
	errs, theirErrs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	defer theirErrs.Close()
	if o.Args.Has("action-script") {
		cmd.Stdout, cmd.Stderr = fileW(o.Stdout), fileW(o.Stderr)
	} else {
		cmd.Stderr = theirErrs
	}
	cmd.ExtraFiles = []*os.File{theirs}
	// A signal from the terminal is for this program, which ends CRIU in the way that leaves the processes well.
	// A shell's job joins CRIU's group, which in another pid namespace has to be of it: a group outside has no number.
	// If this program is killed when it has just stopped CRIU to end it (Options.EndTree), CRIU goes on, finds its
	// socket closed and ends what it has made. A CRIU that runs does not mind the signal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !o.Args.Has("shell-job") || o.Within != nil,
		Pdeathsig: syscall.SIGCONT}
	var dups []*os.File
	defer func() {
		for _, f := range dups {
			f.Close()
		}
	}()
	for i, in := range o.Args.inherit {
		fd, err := unix.FcntlInt(uintptr(in.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("descriptor %d of --inherit-fd: %w", in.fd, err), errs.Close(),
				c.Close())
		}
		f := os.NewFile(uintptr(fd), in.key)
		dups = append(dups, f)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		if err := c.args.line("inherit-fd", fmt.Sprintf("fd[%d]:%s", socketFD+1+i, in.key)); err != nil {
			return nil, errors.Join(err, errs.Close(), c.Close())
		}
	}
	start := cmd.Start
	if c.within != nil {
		c.proc = socketFD + len(cmd.ExtraFiles)
		cmd.ExtraFiles = append(cmd.ExtraFiles, c.within.Proc())
		start = func() error { return c.within.Do(cmd.Start) }
	} else if err := adopt(true); err != nil {
		return nil, errors.Join(err, errs.Close(), c.Close())
	}
	if c.began, err = ticks(); err == nil {
		err = start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start criu: %w", err), errs.Close(), c.Close())
	}
	c.cmd = cmd
	go c.wait(errs)
	return c, nil
}

// wait takes what CRIU writes to errs, and its end.
func (c *CRIU) wait(errs *os.File) {
	defer close(c.exited)
	var hearing sync.WaitGroup
	hearing.Go(func() { io.Copy(&c.said, errs) })
	c.cmd.Wait() // how it went is in its answers
	// What a killed CRIU was making, and programs that it has started, may keep its ends open. What it has said before
	// is there.
	late := time.Now().Add(lastWord)
	c.sock.SetReadDeadline(late)
	errs.SetReadDeadline(late)
	hearing.Wait()
	rest := make([]byte, pipeSize)
	n, _ := lastread.From{C: errs}.Read(rest)
	c.said.Write(rest[:n])
	errs.Close()
}

// lastSaid gives the lines that CRIU has written before it ended, which it does after a failure.
func (c *CRIU) lastSaid() []string {
	select {
	case <-c.exited:
		return strings.FieldsFunc(string(c.said.text), func(r rune) bool { return r == '\n' })
	case <-time.After(time.Second):
		return nil
	}
}

// ended explains that the socket closed before there was an answer.
func (c *CRIU) ended(err error) error {
	if lines := c.lastSaid(); len(lines) > 0 {
		err = errors.New(lines[0])
	} else if by := c.signal(); by != 0 {
		return fmt.Errorf("it was ended by a signal: %v", by)
	}
	return fmt.Errorf("it ended: %w", err)
}

// signal gives the signal that has ended CRIU, 0 without one.
func (c *CRIU) signal() syscall.Signal {
	select {
	case <-c.exited:
	default:
		return 0
	}
	if c.cmd.ProcessState == nil {
		return 0
	}
	if st, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return st.Signal()
	}
	return 0
}

// file and fileW keep a nil *os.File from becoming a non-nil interface.
func file(f *os.File) io.Reader {
	if f == nil {
		return nil
	}
	return f
}

func fileW(f *os.File) io.Writer {
	if f == nil {
		return nil
	}
	return f
}

// endTimeout is how long CRIU has to end by itself when its socket is closed.
const endTimeout = 20 * time.Second

// Close ends CRIU, and waits for it. Unless it has worked, the processes that it made are ended.
func (c *CRIU) Close() (err error) {
	c.once.Do(func() {
		c.sock.Close()
		if c.cmd != nil {
			select {
			case <-c.exited:
			case <-time.After(endTimeout):
				c.cmd.Process.Kill()
				<-c.exited
				err = errors.New("criu did not end and was killed")
			}
			if !c.worked {
				err = errors.Join(err, c.endLeft())
			}
		}
		if c.within == nil {
			err = errors.Join(err, adopt(false))
		}
		err = errors.Join(err, c.temp.Close())
	})
	return err
}

// Discard closes a CRIU that was asked for nothing, and leaves its namespace alone.
func (c *CRIU) Discard() error {
	c.worked = true
	return c.Close()
}

func (c *CRIU) endLeft() error {
	if c.within == nil {
		return endOrphans(os.Getpid(), c.began, c.end)
	}
	return errors.Join(c.within.End(), endOrphans(c.within.Init(), c.began, c.end))
}

// pathFor names a file of this process for a CRIU in another pid namespace: it has no pid for us, and another /proc.
func (c *CRIU) pathFor(f *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%d/fd/%d", c.proc, os.Getpid(), f.Fd())
}

// request is what both kinds of work need.
func (c *CRIU) options(images, work string) (*rpc.CriuOpts, func(), error) {
	if c.args.Work != "" {
		work = c.args.Work
	}
	img, err := os.Open(images)
	if err != nil {
		return nil, nil, fmt.Errorf("open the image directory: %w", err)
	}
	wrk, err := os.Open(work)
	if err != nil {
		img.Close()
		return nil, nil, fmt.Errorf("open the work directory: %w", err)
	}
	done := func() {
		img.Close()
		wrk.Close()
	}
	config := filepath.Join(c.temp.Path(), "criu.conf")
	o := &rpc.CriuOpts{ImagesDirFd: ptr(int32(img.Fd())), WorkDirFd: ptr(int32(wrk.Fd())), ConfigFile: &config}
	args := c.args.clone()
	if c.within != nil {
		o.ImagesDirFd, o.ImagesDir, o.WorkDirFd = ptr(int32(-1)), ptr(c.pathFor(img)), nil
		// A descriptor of ours is of our mount namespace: CRIU could mount nothing in it.
		there := work
		if work == images {
			there = c.pathFor(img)
		}
		err = args.line("work-dir", there)
	}
	if err = errors.Join(err, args.write(config)); err != nil {
		done()
		return nil, nil, err
	}
	if !c.args.Has("action-script") { // CRIU knows one way of telling its milestones at a time
		o.NotifyScripts = ptr(true)
	}
	return o, done, nil
}

func ptr[T any](v T) *T { return &v }

// Keep lets the restored processes be this process's children until Close. Without a parent in their session the group
// of one that is stopped would be orphaned when CRIU ends, and the kernel sends such a group SIGHUP (exit.c of Linux
// 6.18).
func (c *CRIU) Keep() { c.keeps = true }
