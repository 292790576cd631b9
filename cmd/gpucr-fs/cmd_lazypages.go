package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/restore/feed"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// lazyPages is one run of gpucr-fs lazy-pages; the names of its flags are those of criu lazy-pages.
type lazyPages struct {
	a         *app
	images    string
	work      string
	rate      bytesValue
	daemon    bool
	pidfile   string
	statusFD  int
	output    string
	verbose   int
	successor bool
}

func (a *app) lazyPagesCmd() *cobra.Command {
	l := lazyPages{a: a}
	c := &cobra.Command{
		Use:   "lazy-pages -D DIR [-W DIR]",
		Short: "bring the memory of a restore that criu, runc or podman runs",
		Long: `Lazy-pages takes the place of criu lazy-pages. It listens in the work directory for a criu restore
--lazy-pages of the images in -D, and brings the memory of the restored processes. It ends when all memory is there.
If -D is a mount of a store, or one of its .checkpoints, the memory comes straight from the store, and a profile is
used. Any other image directory works as well.

Ctrl-C ends it only before criu has connected. After that the processes depend on it, and it goes on.`,
		Example: "  gpucr-fs lazy-pages -D /images -W /run/restore &\n" +
			"  criu restore --lazy-pages -D /images -W /run/restore\n\n" +
			"  gpucr-fs lazy-pages -d -D /images -W /run/web\n" +
			"  runc restore --lazy-pages --image-path /images --work-path /run/web --bundle /srv/web web",
		Args: positional,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	f := c.Flags()
	f.StringVarP(&l.images, "images-dir", "D", ".", "image directory `DIR`")
	f.StringVarP(&l.work, "work-dir", "W", "", "criu's work directory `DIR` (default: the image directory)")
	f.BoolVarP(&l.daemon, "daemon", "d", false, "return when it listens")
	f.StringVar(&l.pidfile, "pidfile", "", "write the pid to `FILE`")
	f.IntVar(&l.statusFD, "status-fd", -1, "write a zero byte to descriptor `FD` when it listens")
	f.StringVarP(&l.output, "log-file", "o", "", "log to `FILE`, in the work directory, instead of stderr")
	f.CountVarP(&l.verbose, "verbosity", "v", "log more")
	f.Var(&l.rate, "prefetch-rate", "bytes a second fetched ahead of need (default: no bound)")
	f.BoolVar(&l.successor, "successor", false, "go on in place of one that was killed")
	f.MarkHidden("successor")
	return c
}

// criuVerbosity makes of -v4, as criu takes it, what the library for flags takes for it.
func criuVerbosity(args []string) []string {
	if len(args) == 0 || args[0] != "lazy-pages" {
		return args
	}
	args = slices.Clone(args)
	for i, a := range args {
		if len(a) == 3 && strings.HasPrefix(a, "-v") && a[2] >= '0' && a[2] <= '9' {
			args[i] = "-v=" + a[2:]
		}
	}
	return args
}

func (l *lazyPages) run(ctx context.Context) (err error) {
	if l.images, err = filepath.Abs(l.images); err != nil {
		return err
	}
	if l.work == "" {
		l.work = l.images
	}
	if l.work, err = filepath.Abs(l.work); err != nil {
		return err
	}
	for _, dir := range []string{l.images, l.work} {
		st, err := os.Stat(dir)
		if errors.Is(err, iofs.ErrPermission) {
			return err
		}
		if err != nil || !st.IsDir() {
			return usage(fmt.Errorf("%s is no directory", dir), "give the directories as criu restore has them")
		}
	}
	if _, err := os.Stat(filepath.Join(l.images, "inventory.img")); errors.Is(err, iofs.ErrNotExist) && !l.successor {
		return usage(fmt.Errorf("%s holds no checkpoint: inventory.img is missing", l.images),
			"name the folder of the images: -D DIR")
	}
	if err := l.checkStatusFD(); err != nil {
		return err
	}
	if l.daemon {
		return l.background(ctx)
	}
	// A root that follows the checkpoint sealed last stays with it while somebody has it open.
	open, err := os.Open(l.images)
	if err != nil {
		return err
	}
	defer open.Close()
	source, stored, err := fs.SourceOf(l.images)
	if err != nil {
		return err
	}
	var st any
	if stored && !l.successor {
		st, err = l.fromStore(ctx, source)
	} else {
		st, err = l.fromDir(ctx)
	}
	if err != nil {
		return err
	}
	return l.a.print(st, func(io.Writer) {})
}

// checkStatusFD refuses a descriptor that nobody has opened for this command, before anything is begun. Go opens its
// own ones close-on-exec, which an inherited one never is.
func (l *lazyPages) checkStatusFD() error {
	if l.statusFD < 0 {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(l.statusFD), unix.F_GETFD, 0)
	if err == nil && flags&unix.FD_CLOEXEC == 0 {
		return nil
	}
	return usage(fmt.Errorf("--status-fd %d: this descriptor is not open", l.statusFD),
		fmt.Sprintf("open it for the command: %d>FILE", l.statusFD))
}

// fromStore has the store's daemon serve.
func (l *lazyPages) fromStore(ctx context.Context, w fs.Source) (restores.Status, error) {
	out, done, err := l.logFile()
	if err != nil {
		return restores.Status{}, err
	}
	defer done()
	title := "lazy-pages"
	if !term.IsTerminal(int(l.a.err.Fd())) {
		title = "" // a server, whose log this would be
	}
	bar := l.a.progress(title)
	defer bar.close()
	level := l.level()
	st, err := client.ServeLazyPages(
		ctx, w.Store, l.work, service.LazyPagesRequest{Checkpoint: w.ID, Rate: int64(l.rate), Log: &level}, l.ready,
		bar.tell, out,
	)
	if err != nil && l.output != "" {
		slog.New(slog.NewTextHandler(out, nil)).Error("lazy-pages ended", "error", err)
	}
	return st, err
}

// fromDir serves a plain directory from this process.
func (l *lazyPages) fromDir(ctx context.Context) (uffd.Report, error) {
	log, done, err := l.logger()
	if err != nil {
		return uffd.Report{}, err
	}
	defer done()
	o := feed.Options{Images: feed.Dir(l.images), Work: l.work, Rate: int64(l.rate), Logger: log}
	var f *feed.Feed
	if l.successor {
		wire, setup := uffd.SuccessorFDs()
		f, err = feed.Takeover(o, os.NewFile(uintptr(wire), "guardian"), os.NewFile(uintptr(setup), "setup"))
	} else {
		self, perr := program()
		if perr != nil {
			return uffd.Report{}, perr
		}
		o.Guardian = []string{self, "guardian"}
		o.Successor = []string{self, "lazy-pages", "--successor", "-D",
			l.images, "-W", l.work, "--prefetch-rate", strconv.FormatInt(int64(l.rate), 10)}
		if f, err = feed.Start(o); err == nil {
			err = l.ready()
		}
	}
	if err != nil {
		return uffd.Report{}, err
	}
	err = f.Serve(ctx)
	st := f.Status()
	return st.Report, errors.Join(err, f.Close())
}

// level is how much is logged.
func (l *lazyPages) level() slog.Level {
	return []slog.Level{slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}[min(max(int(l.verbose), 0), 2)]
}

// logFile opens --log-file; without one it is stderr.
func (l *lazyPages) logFile() (io.Writer, func(), error) {
	if l.output == "" {
		return l.a.err, func() {}, nil
	}
	name := l.output
	if !filepath.IsAbs(name) {
		name = filepath.Join(l.work, name)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	return f, func() { f.Close() }, nil
}

// logger logs to the log file.
func (l *lazyPages) logger() (*slog.Logger, func(), error) {
	out, done, err := l.logFile()
	if err != nil {
		return nil, nil, err
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: l.level()})), done, nil
}

// ready tells those who asked for it that criu may connect.
func (l *lazyPages) ready() error {
	if l.pidfile != "" {
		name := l.pidfile
		if !filepath.IsAbs(name) {
			name = filepath.Join(l.work, name)
		}
		if err := os.WriteFile(name, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return fmt.Errorf("write the pid: %w", err)
		}
	}
	if l.statusFD < 0 {
		return nil
	}
	f := os.NewFile(uintptr(l.statusFD), "status")
	_, err := f.Write([]byte{0})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write to --status-fd %d: %w", l.statusFD, err)
	}
	return nil
}

// background runs this command again, in a session of its own, and returns when it listens.
func (l *lazyPages) background(ctx context.Context) error {
	self, err := program()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	const statusFD = 3
	args := []string{
		"lazy-pages",
		"--json",
		"-D",
		l.images,
		"-W",
		l.work,
		"--status-fd",
		strconv.Itoa(statusFD),
		"--prefetch-rate",
		strconv.FormatInt(int64(l.rate), 10),
	}
	for name, v := range map[string]string{"--pidfile": l.pidfile, "--log-file": l.output} {
		if v != "" {
			args = append(args, name, v)
		}
	}
	for range l.verbose {
		args = append(args, "-v")
	}
	said, done, err := tempFile("stderr")
	if err != nil {
		w.Close()
		return err
	}
	defer done()
	stderr, err := os.Create(said)
	if err != nil {
		w.Close()
		return err
	}
	defer stderr.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, args...)
	cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = stderr, []*os.File{w}, &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if n, _ := r.Read(make([]byte, 1)); n == 1 {
		return cmd.Process.Release()
	}
	err = cmd.Wait()
	if text, rerr := os.ReadFile(said); rerr == nil {
		if f, ok := lastFailure(text); ok {
			return &codeError{f.Code, f.Hint, errors.New(f.Error)}
		}
	}
	return fmt.Errorf("it did not start: %w", err)
}

// lastFailure finds the error that a command with --json has printed at the end of its stderr.
func lastFailure(stderr []byte) (f failure, ok bool) {
	text := bytes.TrimSpace(stderr)
	err := json.Unmarshal(text[bytes.LastIndexByte(text, '\n')+1:], &f)
	return f, err == nil && f.Error != ""
}
