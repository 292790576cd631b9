package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) profileCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "profile",
		Short: "show, renew, clear or copy what a restore touches first",
		Long: `A profile is the order in which a restore first touched the data of its checkpoint. The first restore
records it, and later ones fetch data in this order. A later checkpoint of the same process has most of its memory
in the same places: copy the profile to it with profile copy.`,
		Example: "  gpucr-fs profile show store/ web-3\n  gpucr-fs profile copy store/ web-3 web-4",
		Args:    subcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.profileShowCmd(), a.profileRecordCmd(), a.profileClearCmd(), a.profileCopyCmd())
	return c
}

func (a *app) profileShowCmd() *cobra.Command {
	var order bool
	c := &cobra.Command{
		Use:   "show STORE NAME",
		Short: "show a checkpoint's profile",
		Long: "Show lists how much of each file is in the profile of NAME. --order lists every run, in the order of " +
			"first touches.",
		Example: "  gpucr-fs profile show --order store/ web-3",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "", service.ShowProfile, service.ProfileRequest{Checkpoint: args[1]},
			)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				if res.Anew {
					fmt.Fprintln(w, "the next restore records a new profile")
				}
				if order {
					for _, t := range res.Touches {
						fmt.Fprintf(w, "%s\t%d\t%s\n", t.File, t.Off, size(t.Len))
					}
					return
				}
				fmt.Fprintln(w, "FILE\tTOUCHES\tBYTES")
				for _, f := range res.Files {
					fmt.Fprintf(w, "%s\t%d\t%s\n", f.Name, f.Touches, size(f.Bytes))
				}
				fmt.Fprintf(w, "all\t%d\t%s\n", len(res.Touches), size(res.Bytes))
			})
		},
	}
	c.Flags().BoolVar(&order, "order", false, "every run, in order")
	return c
}

func (a *app) profileRecordCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "record STORE NAME",
		Short:   "have the next restore record a new profile",
		Long:    "Record makes the next restore of NAME record a new profile, which replaces the present one.",
		Example: "  gpucr-fs profile record store/ web-3\n  gpucr-fs restore --wait store/ web-3",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "", service.RecordProfile, service.ProfileRequest{Checkpoint: args[1]},
			)
			if err != nil {
				return err
			}
			return a.done(
				res,
				func(w io.Writer) { fmt.Fprintf(w, "the next restore of %s records a profile\n", res.Checkpoint) },
			)
		},
	}
}

func (a *app) profileClearCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "clear STORE NAME",
		Short:   "remove a checkpoint's profile",
		Long:    "Clear removes the profile of NAME; the next restore records one.",
		Example: "  gpucr-fs profile clear store/ web-3",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "", service.ClearProfile, service.ProfileRequest{Checkpoint: args[1]},
			)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) { fmt.Fprintf(w, "%s has no profile\n", res.Checkpoint) })
		},
	}
}

func (a *app) profileCopyCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "copy STORE FROM TO",
		Short:   "let the profile of one checkpoint serve another",
		Long:    "Copy gives checkpoint TO the profile of FROM. A restore skips what TO does not have.",
		Example: "  gpucr-fs profile copy store/ web-3 web-4",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(
				cmd.Context(), a, args[0], "", service.CopyProfile,
				service.CopyProfileRequest{From: args[1], To: args[2]},
			)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) {
				fmt.Fprintf(
					w, "%s has the profile of %s: %s of %s serve\n", res.To, res.From, size(res.Serves),
					size(res.Bytes),
				)
			})
		},
	}
}
