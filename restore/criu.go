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
	"github.com/gpucr/gpucr-fs/restore/procfs"
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

// Restore restores the checkpoint in the directory images and returns when its processes run, with the pid of the first
// here and where CRIU runs. The lazy-pages server must listen in the directory work. When ctx ends CRIU is killed, and
// its tasks with it: a task that waits for a CRIU that is gone would wait for ever.
func (c *CRIU) Restore(ctx context.Context, images, work, log string) (pid, inside int, err error) {
	given := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { given <- c.abandon() })
	defer func() {
		if !stop() {
			pid, inside, err = 0, 0, errors.Join(ctx.Err(), <-given)
		}
		if err == nil {
			// From here on the processes are whose they always were.
			c.worked = true
			if c.within == nil && !c.keeps {
				err = adopt(false)
			}
		}
	}()
	if err := c.args.Set("log-file", log); err != nil {
		return 0, 0, err
	}
	o, done, err := c.options(images, work)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	o.LazyPages = ptr(true)
	resp, err := c.do(ctx, rpc.CriuReqType_RESTORE, o)
	if err != nil {
		return 0, 0, fmt.Errorf("criu restore: %w", c.explain(err, work))
	}
	pid = int(resp.GetRestore().GetPid())
	if inside = pid; c.within != nil {
		pid, err = childPID(c.cmd.Process.Pid, c.within.Init(), inside)
	}
	return pid, inside, err
}

// childPID finds the process that has the number inside in the pid namespace below this process's: CRIU's child, and
// its init's when CRIU has ended.
func childPID(criu, init, inside int) (int, error) {
	// A process that is just handed on from one to the other may be missed once.
	var unseen error
	for range 3 {
		beside, err1 := procfs.ReadChildren(criu)
		below, err2 := procfs.ReadChildren(init)
		unseen = errors.Join(err1, err2)
		for _, pid := range append(beside, below...) {
			n, err := procfs.ReadNumbers(pid)
			if len(n) > 1 && n[1] == inside {
				return pid, nil
			}
			unseen = errors.Join(unseen, err)
		}
	}
	if unseen != nil {
		return 0, fmt.Errorf("look for process %d of the namespace: %w", inside, unseen)
	}
	return 0, fmt.Errorf("process %d of the namespace has no pid outside", inside)
}

// abandon ends CRIU and what it has made, unless it is done.
func (c *CRIU) abandon() error {
	select {
	case <-c.exited:
		return nil
	default:
	}
	if c.within != nil {
		return c.within.End()
	}
	return c.end(c.cmd.Process.Pid)
}

// Dump dumps the process pid and its descendants into the directory images. It is not to be interrupted: see the
// package comment.
func (c *CRIU) Dump(images, log string, pid int, leaveRunning bool) error {
	if err := c.args.Set("log-file", log); err != nil {
		return err
	}
	o, done, err := c.options(images, images)
	if err != nil {
		return err
	}
	defer done()
	o.Pid = ptr(int32(pid))
	o.LeaveRunning = ptr(leaveRunning || c.args.LeaveRunning)
	if _, err := c.do(context.Background(), rpc.CriuReqType_DUMP, o); err != nil {
		return fmt.Errorf("criu dump: %w", c.explain(err, images))
	}
	c.worked = true
	return nil
}

// SetDefault gives one of CRIU's options a value unless the user did.
func (c *CRIU) SetDefault(name, value string) error { return c.args.Set(name, value) }

// Marks are CRIU's milestones so far.
func (c *CRIU) Marks() []Mark { return c.marks }

// do sends a request and answers CRIU's notes until the work is done.
func (c *CRIU) do(ctx context.Context, kind rpc.CriuReqType, o *rpc.CriuOpts) (*rpc.CriuResp, error) {
	c.mark("criu asked")
	req := rpc.CriuReq{Type: &kind, Opts: o}
	buf := make([]byte, maxMessage)
	for {
		b, err := req.MarshalVT()
		if err != nil {
			return nil, err
		}
		if _, err := c.sock.Write(b); err != nil {
			return nil, c.ended(err)
		}
		n, err := c.sock.Read(buf)
		if n == 0 && err == nil {
			err = io.EOF
		}
		if err != nil {
			return nil, c.ended(err)
		}
		resp := &rpc.CriuResp{}
		if err := resp.UnmarshalVT(buf[:n]); err != nil {
			return nil, fmt.Errorf("it sent what is no answer: %w", err)
		}
		switch {
		case resp.GetType() == rpc.CriuReqType_NOTIFY && resp.GetSuccess():
			script := resp.GetNotify().GetScript()
			c.mark(script)
			if err := c.held(ctx, script); err != nil {
				return nil, err
			}
			req = rpc.CriuReq{Type: ptr(rpc.CriuReqType_NOTIFY), NotifySuccess: ptr(true)}
		case !resp.GetSuccess():
			return nil, c.failure(resp)
		case resp.GetType() != kind:
			return nil, fmt.Errorf("it answered a %v with a %v", kind, resp.GetType())
		default:
			c.mark("criu done")
			return resp, nil
		}
	}
}

func (c *CRIU) mark(name string) { c.marks = append(c.marks, Mark{Name: name, At: time.Now()}) }

func (c *CRIU) failure(resp *rpc.CriuResp) error {
	text := strings.TrimSpace(resp.GetCrErrmsg())
	errno := syscall.Errno(resp.GetCrErrno())
	if text == "" && errno == syscall.EBADRQC {
		// It did not understand its options. It tells which one where it has no log yet.
		text = strings.Join(c.lastSaid(), "; ")
	}
	if text == "" && errno != 0 {
		text = errno.Error()
	}
	if text == "" {
		text = "it failed"
	}
	return errors.New(text)
}

// explain gives what the log says in place of CRIU's answer.
func (c *CRIU) explain(err error, work string) error {
	errs := c.logged(work)
	if len(errs) == 0 {
		errs = []string{err.Error()}
	}
	return judge(c.program, diagnosis.Of(errs))
}

// logged gives the errors in CRIU's log.
func (c *CRIU) logged(work string) (errs []string) {
	log := c.args.Value("log-file")
	if c.args.Work != "" {
		work = c.args.Work
	}
	if !filepath.IsAbs(log) {
		log = filepath.Join(work, log)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return nil // its answer has to do
	}
	return diagnosis.Errors(string(text))
}
