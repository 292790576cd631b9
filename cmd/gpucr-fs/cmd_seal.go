package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) sealCmd() *cobra.Command {
	var durable bool
	c := &cobra.Command{
		Use:   "seal STORE NAME",
		Short: "complete a checkpoint that is being written through a mount",
		Long: `Seal completes a checkpoint that is being written through a mount: it is durable and immutable then.
What criu dump writes is sealed automatically at the end of the dump. Use this command for what other programs write.`,
		Example: "  mkdir /images/.checkpoints/web-4\n" +
			"  cp -r dump/. /images/.checkpoints/web-4\n" +
			"  gpucr-fs seal store/ web-4",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mayBeDurable(args[0], durable); err != nil {
				return err
			}
			res, err := do(cmd.Context(), a, args[0], "", service.Seal, service.SealRequest{Name: args[1]})
			if err != nil {
				return err
			}
			late := a.durable(cmd.Context(), args[0], res.Name, durable)
			return errors.Join(a.done(res, func(w io.Writer) {
				fmt.Fprintf(
					w, "sealed %s: %d files, %s, of which %s zero\n", res.Name, res.Files, size(res.Logical),
					size(res.Zero),
				)
			}), late)
		},
	}
	addDurable(c.Flags(), &durable)
	return c
}
