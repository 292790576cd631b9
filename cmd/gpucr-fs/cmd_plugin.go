package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/fill"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin"
	"github.com/gpucr/gpucr-fs/restore/plugin/helper"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

func (a *app) pluginDirCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "plugin-dir",
		Short: "print the directory of the CRIU plugin for AMD GPUs",
		Long: `Print the directory to give to criu: criu dump -L "$(gpucr-fs plugin-dir)" ...

CRIU loads every plugin of that directory. It holds gpucr_plugin.so alone, which takes the place of CRIU's own
amdgpu_plugin.so and restores its images.`,
		Args: positional,
		RunE: func(*cobra.Command, []string) error {
			dir, err := pluginDir()
			if err != nil {
				return err
			}
			return a.print(map[string]string{"dir": dir}, func(w io.Writer) { fmt.Fprintln(w, dir) })
		},
	}
}

// pluginDir finds the plugin beside this program.
func pluginDir() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir, err := plugin.Dir(exe)
	if errors.Is(err, plugin.ErrNotFound) {
		err = &codeError{exitError, "make plugin builds it, make install installs it", err}
	}
	return dir, err
}

// pluginFD is the descriptor of the plugin's connection.
const pluginFD = 3

// pluginHelperCmd is what the CRIU plugin starts beside CRIU.
func (a *app) pluginHelperCmd() *cobra.Command {
	watchdog := false
	c := &cobra.Command{
		Use:    "plugin-helper",
		Short:  "serve the CRIU plugin (started by it)",
		Hidden: true,
		Args:   positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})).
				With("in", "plugin-helper")
			signal.Ignore(syscall.SIGPIPE) // who listened to standard error may be gone
			tell := teller(os.Getenv(vramEventsVar))
			if watchdog {
				conn, err := wire.NewConn(os.NewFile(pluginFD, "helper"))
				if err != nil {
					return usage(err, "gpucr-fs plugin-helper starts this command")
				}
				return helper.Watch(conn, log, tell)
			}
			opts, err := pluginOptions(log)
			opts.Refuse, opts.Fills, opts.Watchdog, opts.Alone = err, fillsOf(log), startWatchdog, alone
			opts.Tell, opts.Abandoned, opts.Announces = tell, report, announcesOf
			conn, err := wire.NewConn(os.NewFile(pluginFD, "plugin"))
			if err != nil {
				return usage(err, "CRIU's plugin starts this command")
			}
			return helper.Serve(cmd.Context(), conn, opts)
		},
	}
	c.Flags().BoolVar(&watchdog, "watchdog", false, "end the processes that a helper leaves without their GPU memory")
	return c
}

// startWatchdog starts the watchdog of this helper, in a cgroup of its own where there is one.
func startWatchdog() (*wire.Conn, <-chan struct{}, error) {
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cmd, _, err := uffd.StartApart(func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", "plugin-helper", "--watchdog")
		cmd.Args[0], cmd.ExtraFiles = os.Args[0], []*os.File{theirs}
		if !awaited(os.Stderr) {
			cmd.Stderr = os.Stderr
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd
	})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // killed or not, it is gone
		uffd.ClearApart()
	}()
	return conn, ended, nil
}

// awaited tells whether somebody may be reading a file to its end.
func awaited(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}

// alone lets go of a pipe that CRIU's caller may be reading to its end.
func alone() {
	if !awaited(os.Stderr) {
		return
	}
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		unix.Dup2(int(null.Fd()), 2)
		null.Close()
	}
}

// fillsOf fills through the daemon when the images are in a mount of ours, else from the directory.
func fillsOf(log *slog.Logger) func(images string) (helper.Filler, bool) {
	return func(images string) (helper.Filler, bool) {
		directory := helper.Directory(images)
		mounted, err := fill.Open(images)
		if err != nil {
			log.Debug("filling from the directory", "reason", err)
			return directory, true
		}
		return func(ctx context.Context, plan vram.Plan, opts vram.Options,
			turn <-chan struct{}) (vram.Report, error) {
			rep, err := mounted.Fill(ctx, plan, opts, turn)
			if errors.Is(err, fill.ErrNotMounted) {
				log.Debug("filling from the directory", "reason", err)
				return directory(ctx, plan, opts, turn)
			}
			return rep, err
		}, false
	}
}

// announcesOf is fillsOf for fills that the restore server makes.
func announcesOf(images string) helper.Announcer {
	mounted, notMounted := fill.Open(images)
	return func(ctx context.Context, plan vram.Plan, opts vram.Options, again bool) (a helper.Announced, err error) {
		packets, err := fill.Packets(plan)
		if err != nil {
			return a, err
		}
		for _, p := range packets {
			a.Packets = append(a.Packets, helper.Packet(p))
		}
		if notMounted == nil {
			a.Conn, err = mounted.Announce(ctx, plan, opts, again)
			if !errors.Is(err, fill.ErrNotMounted) {
				return a, err
			}
		}
		a.Conn, a.Serve, err = fill.AnnounceHere(images, plan, opts)
		return a, err
	}
}

// pluginOptions come from the environment that CRIU was started in.
func pluginOptions(log *slog.Logger) (helper.Options, error) {
	settings, warnings := topology.ParseSettings(os.LookupEnv)
	for _, w := range warnings {
		log.Warn(w)
	}
	opts := helper.Options{Settings: settings, Logger: log, VRAM: vram.Options{Logger: log}}
	switch v := os.Getenv("GPUCR_PARALLEL"); strings.ToUpper(v) {
	case "", "1", "YES":
	case "0", "NO":
		opts.Sequential = true
	default:
		return opts, fmt.Errorf("GPUCR_PARALLEL=%s is neither 0 nor 1", v)
	}
	switch v := os.Getenv("GPUCR_SCHEMA"); v {
	case "":
	case image.Schema42.String():
		opts.Schema = image.Schema42
	case image.SchemaLater.String():
		opts.Schema = image.SchemaLater
	default:
		return opts, fmt.Errorf("GPUCR_SCHEMA=%s is neither %v nor %v", v, image.Schema42, image.SchemaLater)
	}
	var err error
	if opts.Lazy, err = parseVRAM(os.Getenv(vramVar)); err != nil {
		return opts, fmt.Errorf("%s: %w", vramVar, err)
	}
	if opts.VRAM.Verify, err = vram.ParseMode(os.Getenv(verifyVar)); err != nil {
		return opts, fmt.Errorf("%s: %w", verifyVar, err)
	}
	return opts, nil
}
