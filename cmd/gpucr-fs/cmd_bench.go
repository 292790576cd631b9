package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/bench"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) benchCmd() *cobra.Command {
	var amount bytesValue
	var compression string
	c := &cobra.Command{
		Use:   "bench DIR",
		Short: "measure how fast a store on this disk would be",
		Long: `Bench makes a scratch store on the disk of DIR, writes a synthetic checkpoint to it, reads it back,
shows how fast both were, and removes the scratch store. DIR may be a store; it is not touched.`,
		Example: "  gpucr-fs bench store/\n  gpucr-fs bench --size 4GiB --compression zstd /var/lib",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := a.progress("bench")
			res, err := bench.Run(
				cmd.Context(),
				bench.Options{
					Dir:         args[0],
					Size:        int64(amount),
					Compression: index.Compression(compression),
					Progress:    p.tell,
				},
			)
			p.close()
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(
					w, "size\t%s\ningest\t%s\ndedupe\t%s\nread cold\t%s\nread warm\t%s\nstored\t%s\n", size(res.Size),
					speed(res.Ingest), speed(res.Dedupe), speed(res.ReadCold), speed(res.ReadWarm), size(res.Stored),
				)
			})
		},
	}
	c.Flags().Var(&amount, "size", "of the synthetic checkpoint (default 512MiB)")
	c.Flags().StringVar(&compression, "compression", "", "of the scratch store: auto, zstd, s2 or none (default auto)")
	return c
}
