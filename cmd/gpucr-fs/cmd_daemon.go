package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon"
)

// daemonCmd is what mount runs in the background.
func (a *app) daemonCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "daemon",
		Short:  "serve a mount (started by mount)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			starter, err := daemon.NewStarter()
			if err != nil {
				return usage(err, "use gpucr-fs mount")
			}
			var spec daemonSpec
			if err := json.NewDecoder(a.in).Decode(&spec); err != nil {
				return starter.Report(daemon.MountResult{}, fmt.Errorf("read the daemon's instructions: %w", err))
			}
			log, err := daemon.OpenLogFile(spec.Log, logLimit)
			if err != nil {
				return starter.Report(daemon.MountResult{}, err)
			}
			defer log.Close()
			return serve(cmd.Context(), spec, log, starter.Report)
		},
	}
}
