package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// readyFD is the descriptor on which a started daemon reports, the first after the standard ones.
const readyFD = 3

// ready is what a daemon tells its starter, once.
type ready struct {
	Result *mounts.Result `json:"result,omitempty"`
	Error  *wire.Error    `json:"error,omitempty"`
}

// Spawn starts a daemon and returns when its first mount serves, or with what kept it from serving. The daemon runs
// the program name with args, spec as JSON on its standard input, in a session of its own and in the root directory;
// what it prints goes to the end of the file log.
func Spawn(ctx context.Context, program string, args []string, spec any, log string) (mounts.Result, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return mounts.Result{}, err
	}
	in, inW, err := os.Pipe()
	if err != nil {
		return mounts.Result{}, err
	}
	defer in.Close()
	defer inW.Close()
	out, outW, err := os.Pipe()
	if err != nil {
		return mounts.Result{}, err
	}
	defer out.Close()
	defer outW.Close()
	logFile, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return mounts.Result{}, fmt.Errorf("open the log: %w", err)
	}
	defer logFile.Close()

	cmd := &exec.Cmd{
		Path:        program,
		Args:        args,
		Dir:         "/",
		Stdin:       in,
		Stdout:      logFile,
		Stderr:      logFile,
		ExtraFiles:  []*os.File{outW},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return mounts.Result{}, fmt.Errorf("start the daemon: %w", err)
	}
	in.Close()
	outW.Close()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if _, err := inW.Write(body); err != nil {
		return mounts.Result{}, errors.Join(fmt.Errorf("start the daemon: %w", err), ending(cmd))
	}
	inW.Close()

	// The pipe closes with the report, or with the daemon.
	text, err := io.ReadAll(out)
	if err != nil {
		return mounts.Result{}, fmt.Errorf("start the daemon: %w", err)
	}
	var r ready
	if len(text) == 0 || json.Unmarshal(text, &r) != nil || r.Result == nil {
		err := ending(cmd)
		switch {
		case ctx.Err() != nil:
			return mounts.Result{}, ctx.Err()
		case r.Error != nil:
			return mounts.Result{}, r.Error.Err()
		case err == nil:
			err = errors.New("it ended without a word")
		}
		return mounts.Result{}, fmt.Errorf("the daemon did not start: %w; its log is %s", err, log)
	}
	return *r.Result, cmd.Process.Release()
}

// ending waits for a started daemon to end; ErrGone when it was killed.
func ending(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if w := (*exec.ExitError)(nil); errors.As(err, &w) && !w.Exited() {
		return fmt.Errorf("%w: %w", wire.ErrGone, err)
	}
	return err
}

// Starter is the way back from a daemon made by Spawn to the one who started it.
type Starter struct{ pipe *os.File }

// NewStarter is called by a started daemon, first thing: children must not inherit the pipe.
func NewStarter() (*Starter, error) {
	// In a program started by hand the descriptor is closed, or the Go runtime's own.
	var st unix.Stat_t
	if err := unix.Fstat(readyFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errors.New("this is not a started daemon")
	}
	unix.CloseOnExec(readyFD)
	return &Starter{os.NewFile(readyFD, "starter")}, nil
}

// Report tells, once, that the mount serves, or why it does not.
func (s *Starter) Report(res mounts.Result, err error) error {
	defer s.pipe.Close()
	r := ready{Result: &res}
	if err != nil {
		r = ready{Error: wire.NewError(err)}
	}
	return json.NewEncoder(s.pipe).Encode(r)
}
