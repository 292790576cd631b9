package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) duCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "du STORE",
		Short: "account for the bytes of a store",
		Long: `Du shows where the bytes of a store are. Logical bytes are the sizes of all files; zero ones are stored nowhere. Distinct bytes are those of different
chunks, stored bytes what these occupy on disk, compressed. Disk is what the store's folder occupies with index and journals; reclaimable is what gc would give
back of it now.`,
		Example: "  gpucr-fs du store/\n  gpucr-fs du --json store/",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := do(cmd.Context(), a, args[0], "", service.Usage, service.UsageRequest{})
			if err != nil {
				return err
			}
			return errors.Join(a.print(u, func(w io.Writer) {
				checkpointTable(w, u.Checkpoints)
				fmt.Fprintf(w, "\nlogical\t%s in %d checkpoints\nzero\t%s\ndistinct\t%s in %d chunks\nstored\t%s in %d packs\ndedupe\t%.2f times\ndisk\t%s\nreclaimable\t%s\n",
					size(u.Logical), len(u.Checkpoints), size(u.Zero), size(u.Distinct), u.Chunks, size(u.Stored), u.Packs, u.DedupeRatio, size(u.Disk), size(u.Reclaimable))
			}), damageOf("du", u.Checkpoints))
		},
	}
}
