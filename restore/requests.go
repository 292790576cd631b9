package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"

	"github.com/gpucr/gpucr-fs/restore/diagnosis"
	"github.com/gpucr/gpucr-fs/restore/lastread"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// What CRIU is asked for, and what it says where it fails.

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
		n, err := lastread.From{C: c.sock}.Read(buf)
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
