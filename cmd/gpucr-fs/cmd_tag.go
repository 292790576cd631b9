package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) tagCmd() *cobra.Command {
	var req service.TagRequest
	c := &cobra.Command{
		Use:   "tag STORE NAME [TAG...]",
		Short: "add and remove tags of a checkpoint",
		Long: "Tag gives a checkpoint more names. A tag belongs to one checkpoint at most; adding it elsewhere " +
			"moves it. Without tags it shows those of NAME.",
		Example: "  gpucr-fs tag store/ web-1 golden\n  gpucr-fs tag store/ web-1 --remove golden",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name, req.Add = args[1], args[2:]
			res, err := do(cmd.Context(), a, args[0], "", service.Tag, req)
			if err != nil {
				return err
			}
			show := a.print
			if len(req.Add)+len(req.Remove) > 0 {
				show = a.done
			}
			return show(
				res,
				func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", res.Name, dash(strings.Join(res.Tags, " "))) },
			)
		},
	}
	c.Flags().StringSliceVar(&req.Remove, "remove", nil, "`TAG` to take away, may be given again")
	return c
}
