package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/lifecycle"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// daemonCmd is what mount, restore and dump run in the background.
func (a *app) daemonCmd() *cobra.Command {
	var successor string
	c := &cobra.Command{
		Use:    "daemon",
		Short:  "serve a store (started by mount, restore and dump)",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if successor != "" {
				return a.succeed(cmd, successor, args)
			}
			starter, err := lifecycle.NewStarter()
			if err != nil {
				return usage(err, "use gpucr-fs mount")
			}
			var spec daemonSpec
			if err := json.NewDecoder(a.in).Decode(&spec); err != nil {
				return starter.Report(mounts.Result{}, fmt.Errorf("read the daemon's instructions: %w", err))
			}
			log, err := lifecycle.OpenLogFile(spec.Log, logLimit)
			if err != nil {
				return starter.Report(mounts.Result{}, err)
			}
			defer log.Close()
			return serve(cmd.Context(), spec, log, starter.Report)
		},
	}
	c.Flags().
		StringVar(&successor, "successor", "",
			"go on with a restore in place of a daemon that was killed: its instructions")
	return c
}

// succeed goes on with the restore that args describe; a guardian starts it.
func (a *app) succeed(cmd *cobra.Command, instructions string, args []string) error {
	var spec daemonSpec
	if err := json.Unmarshal([]byte(instructions), &spec); err != nil || len(args) != 1 {
		return usage(fmt.Errorf("these are no instructions for a successor"), "use gpucr-fs restore")
	}
	var to io.Writer = os.Stderr // the processes wait: it goes on without its log, as on a full disk
	log, err := lifecycle.OpenLogFile(spec.Log, logLimit)
	if err == nil {
		defer log.Close()
		to = log
	}
	o, err := spec.options(spec.logger(to))
	if err != nil {
		return err
	}
	return lifecycle.Succeed(cmd.Context(), o, args[0])
}

// guardianCmd is the process that holds the memory of a restore's processes together, see restore/uffd.
func (a *app) guardianCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "guardian",
		Short:  "guard a restore (started by the daemon)",
		Hidden: true,
		Args:   positional,
		RunE:   func(*cobra.Command, []string) error { return uffd.GuardianMain() },
	}
}
