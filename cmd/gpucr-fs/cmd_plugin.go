package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/fill"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin"
	"github.com/gpucr/gpucr-fs/restore/plugin/peer"
	"github.com/gpucr/gpucr-fs/restore/server"
	"github.com/gpucr/gpucr-fs/restore/server/wire"
)

func (a *app) pluginDirCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "plugin-dir",
		Short: "print the directory of the CRIU plugin for AMD GPUs",
		Long: `Print the directory to give to criu: criu dump -L "$(gpucr-fs plugin-dir)" ...

CRIU loads every plugin of that directory. It holds gpucr_plugin.so alone, which takes the place of CRIU's own amdgpu_plugin.so and restores its images.`,
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
	return &cobra.Command{
		Use:    "plugin-helper",
		Short:  "serve the CRIU plugin (started by it)",
		Hidden: true,
		Args:   positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})).With("in", "plugin-helper")
			opts, err := pluginOptions(log)
			opts.Refuse, opts.Fill = err, fillBOs
			conn, err := wire.NewConn(os.NewFile(pluginFD, "plugin"))
			if err != nil {
				return usage(err, "CRIU's plugin starts this command")
			}
			return peer.Serve(cmd.Context(), conn, opts)
		},
	}
}

// fillBOs fills through the daemon when the images are in a mount of ours, else from the directory.
func fillBOs(ctx context.Context, images string, plan server.Plan, opts server.Options) (server.Report, error) {
	rep, err := fill.Through(ctx, images, plan, opts)
	if errors.Is(err, fill.ErrNotMounted) {
		opts.Logger.Debug("filling from the directory", "reason", err)
		return peer.FillFromDirectory(ctx, images, plan, opts)
	}
	return rep, err
}

// pluginOptions come from the environment that CRIU was started in.
func pluginOptions(log *slog.Logger) (peer.Options, error) {
	settings, warnings := topology.ParseSettings(os.LookupEnv)
	for _, w := range warnings {
		log.Warn(w)
	}
	opts := peer.Options{Settings: settings, Logger: log, Server: server.Options{Logger: log}}
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
	if opts.Server.Verify, err = server.ParseMode(os.Getenv(verifyVar)); err != nil {
		return opts, fmt.Errorf("%s: %w", verifyVar, err)
	}
	return opts, nil
}
