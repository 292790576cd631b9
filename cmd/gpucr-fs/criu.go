package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/index/scratch"
	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/restore"
)

// criuFlags are those of commands that run CRIU.
type criuFlags struct {
	program string
}

func (f *criuFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(
		&f.program, "criu", "",
		"CRIU's `PROGRAM` (default: $CRIU, else one built beside this program, else criu in $PATH)",
	)
}

// name gives CRIU's program, or what to look for in the PATH. Every command takes the same one.
func (f *criuFlags) name() string {
	if f.program != "" {
		return f.program
	}
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	if self, err := os.Executable(); err == nil {
		built := filepath.Join(filepath.Dir(self), "..", "build", "criu", "criu")
		if _, err := os.Stat(built); err == nil {
			return built
		}
	}
	return "criu"
}

// find gives the path of CRIU's program.
func (f *criuFlags) find() (string, error) { return restore.Find(f.name()) }

// start starts CRIU with the options that follow --, within another pid namespace unless that is nil. Its plugin for
// AMD GPUs will work with this very program.
func (f *criuFlags) start(a *app, args restore.Args, within restore.Within, env ...string) (*restore.CRIU, error) {
	if exe, err := os.Executable(); err == nil && os.Getenv("GPUCR_FS") == "" {
		os.Setenv("GPUCR_FS", exe)
	}
	o := f.options(a, args)
	o.Within, o.Env = within, env
	return restore.Start(o)
}

func (f *criuFlags) options(a *app, args restore.Args) restore.Options {
	return restore.Options{Program: f.name(), Args: args, Stdin: a.in, Stdout: a.err, Stderr: a.err, EndTree: endTree}
}

// criuArgs takes a command's own arguments, which are called names, and those for CRIU, after --.
func criuArgs(cmd *cobra.Command, args, names []string) ([]string, restore.Args, error) {
	rest := []string(nil)
	if at := cmd.ArgsLenAtDash(); at >= 0 {
		args, rest = args[:at], args[at:]
	}
	if err := checkArguments(cmd, names, args); err != nil {
		return nil, restore.Args{}, err
	}
	parsed, err := restore.ParseArgs(slices.Clone(rest))
	if err != nil {
		return nil, parsed, usage(err, "criu --help lists criu's options")
	}
	return args, parsed, nil
}

// amdgpuPlugins is the folder of CRIU's plugin for processes that use AMD GPUs; "" leaves CRIU its own, where there is
// no such GPU or the plugin is not installed.
func amdgpuPlugins() string {
	if _, err := os.Stat(kfd.DevicePath); err != nil {
		return ""
	}
	dir, err := pluginDir()
	if err != nil {
		return ""
	}
	return dir
}

// startDaemon makes a daemon for commands that need one; restores tells it what for.
func (a *app) startDaemon(store string, restores bool) (dir string, start client.StartFunc, err error) {
	spec, err := a.spec(store)
	spec.Restores = restores
	return spec.Store, func(ctx context.Context) (mounts.Result, error) { return spawn(ctx, spec) }, err
}

// tempFile gives the name of a file that does not outlive the command.
func tempFile(name string) (string, func(), error) {
	dir, err := scratch.Make(os.TempDir(), "gpucr-fs-output-")
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(dir.Path(), name), func() { dir.Close() }, nil
}
