package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) diffCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "diff STORE A B",
		Short: "show per file what two checkpoints share",
		Long: `Diff compares two checkpoints file by file. Bytes of a file of B are shared if any file of A has the
same chunks; otherwise they are unique. For a file that only A has, it is the other way round. For each GPU buffer
object of B diff shows the one of A that has the same contents, at whatever address. A and B are names, tags or
beginnings of IDs.`,
		Example: "  gpucr-fs diff store/ web-1 web-2",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(cmd.Context(), a, args[0], "", service.Diff, service.DiffRequest{A: args[1], B: args[2]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "FILE\tIN %s\tIN %s\tZERO\tSHARED\tUNIQUE\n", res.A, res.B)
				for _, f := range res.Files {
					fmt.Fprintf(
						w, "%s\t%s\t%s\t%s\t%s\t%s\n", shown(f.Path), size(f.SizeA), size(f.SizeB), size(f.Zero),
						size(f.Shared), size(f.Unique),
					)
				}
				fmt.Fprintf(w, "total\t\t\t%s\t%s\t%s\n", size(res.Zero), size(res.Shared), size(res.Unique))
				if res.GPUProblem != "" {
					fmt.Fprintf(w, "\ngpu images cannot be compared: %s\n", res.GPUProblem)
				}
				if len(res.BOs) > 0 {
					printBOs(w, res.BOs, "SAME AS, IN "+res.A)
				}
			})
		},
	}
}
