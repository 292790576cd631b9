package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) renameCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rename STORE NAME NEW",
		Short: "give a checkpoint another name",
		Long: `Rename gives a sealed checkpoint another name, which no other checkpoint or tag may have. ID, tags,
labels, profile and time stay the same. Restores and open files of the checkpoint go on.`,
		Example: "  gpucr-fs rename store/ web-1 web-before-upgrade",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "", service.Rename, service.RenameRequest{Ref: args[1], Name: args[2]},
			)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) { fmt.Fprintf(w, "%s is %s now\n", args[1], res.Name) })
		},
	}
}
