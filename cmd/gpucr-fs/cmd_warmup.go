package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) warmupCmd() *cobra.Command {
	var hot bool
	var rate bytesValue
	c := &cobra.Command{
		Use:   "warmup STORE NAME",
		Short: "read a checkpoint, or its hot set, into memory ahead of time",
		Long: `Warmup reads checkpoint NAME into the page cache, so that a later restore is faster. If a daemon serves
the store, warmup also fills the daemon's cache, up to --cache-size. With --hot it reads only what the checkpoint's
profile names: what its processes touch first.`,
		Example: "  gpucr-fs warmup store/ web-3 --hot",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "warmup", service.Warmup,
				service.WarmupRequest{Checkpoint: args[1], Hot: hot, Rate: int64(rate)},
			)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) {
				fmt.Fprintf(w, "read %s of %s; %s are zero\n", size(res.Bytes), res.Checkpoint, size(res.Zero))
			})
		},
	}
	c.Flags().BoolVar(&hot, "hot", false, "only what the profile names")
	c.Flags().Var(&rate, "prefetch-rate", "bytes a second (default: no bound)")
	return c
}
