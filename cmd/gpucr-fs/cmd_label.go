package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) labelCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "label STORE NAME [KEY=VALUE...]",
		Short: "show and change the labels of a checkpoint",
		Long: `Label sets labels of a sealed checkpoint; KEY= removes one. Without labels it shows those of NAME.
Checkpoints get the labels host, user and command by themselves, from the images of their first process. Those made
by gpucr-fs dump also get started. Select by labels with ls --label.`,
		Example: "  gpucr-fs label store/ web-1 team=vision env=prod\n  gpucr-fs label store/ web-1 env=",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			labels, err := label.Parse(args[2:])
			if err != nil {
				return err
			}
			res, err := do(
				cmd.Context(), a, args[0], "", service.Label, service.LabelRequest{Ref: args[1], Labels: labels},
			)
			if err != nil {
				return err
			}
			show := a.print
			if len(labels) > 0 {
				show = a.done
			}
			return show(res, func(w io.Writer) {
				for _, k := range slices.Sorted(maps.Keys(res.Labels)) {
					fmt.Fprintf(w, "%s\t%s\n", k, res.Labels[k])
				}
			})
		},
	}
}
