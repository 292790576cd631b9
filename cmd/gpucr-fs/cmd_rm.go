package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

func (a *app) rmCmd() *cobra.Command {
	var req service.RemoveRequest
	var keep service.Policy
	var within withinValue
	var dryRun, yes, remote bool
	c := &cobra.Command{
		Use:   "rm STORE [NAME...]",
		Short: "remove checkpoints by name, tag or policy",
		Long: `Rm removes checkpoints: those that you name, the one with --tag, or all sealed ones that no --keep-…
rule keeps. A checkpoint is kept if any of the rules keeps it. Rm removes either the whole selection or nothing. If
an incremental checkpoint needs another one, rm refuses to remove that one by name, and policies keep it. The rules
for hours, days, weeks and months also keep the oldest checkpoint while they keep fewer than their number. Checkpoints
that were sealed in the future, by this machine's clock, are kept. So are checkpoints that restored processes still lack
memory from; rm refuses to remove these by name. To give the space back, run gc.`,
		Example: "  gpucr-fs rm store/ web-1 web-2\n" +
			"  gpucr-fs rm -n --keep-last 3 --keep-within 7d12h --keep-tag golden store/\n" +
			"  gpucr-fs rm --keep-hourly 24 --keep-daily 7 --keep-weekly 5 --keep-monthly 12 store/\n" +
			"  gpucr-fs rm --keep-last 3 --label host=node-7 store/",
		SuggestFor: []string{"delete", "remove"},
		Args:       positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			keep.Within = time.Duration(within)
			req.Names, req.Keep = args[1:], &keep
			if remote {
				return a.rmRemote(cmd.Context(), args[0], args[1:], yes)
			}
			return a.session(
				cmd.Context(),
				args[0],
				func(s *client.Session) error { return a.rm(cmd.Context(), s, req, dryRun, yes) },
			)
		},
	}
	f := c.Flags()
	f.StringVar(&req.Tag, "tag", "", "remove the checkpoint with `TAG`")
	f.IntVar(&keep.Last, "keep-last", 0, "keep the `N` checkpoints that were sealed last")
	f.Var(&within, "keep-within", "keep those sealed within `TIME` before the last one; like 7d12h (w, d, h, m, s)")
	f.IntVar(&keep.Hourly, "keep-hourly", 0, "keep the last checkpoint of each of the latest `N` hours that have one")
	f.IntVar(&keep.Daily, "keep-daily", 0, "the same by days")
	f.IntVar(&keep.Weekly, "keep-weekly", 0, "the same by weeks, which begin on Monday")
	f.IntVar(&keep.Monthly, "keep-monthly", 0, "the same by months")
	f.StringSliceVar(&keep.Tags, "keep-tag", nil, "keep those with `TAG`, may be given again")
	f.StringArrayVar(
		(*[]string)(&keep.Labels), "label", nil,
		"apply the rules only to checkpoints with the label `KEY` or KEY=VALUE, may be given again",
	)
	f.BoolVarP(&dryRun, "dry-run", "n", false, "only show what would be removed")
	f.BoolVar(&remote, "remote", false, "remove the named checkpoints from the remote store, for all machines")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// rm shows the selection first and removes what was shown. Rules are applied again: they keep what is in use by then.
func (a *app) rm(ctx context.Context, s *client.Session, req service.RemoveRequest, dryRun, yes bool) error {
	req.DryRun = true
	res, err := service.Remove.Do(ctx, s, req, wire.Streams{})
	if err != nil {
		return err
	}
	if !dryRun && len(res.Removed) > 0 {
		names, ids := make([]string, len(res.Removed)), make([]string, len(res.Removed))
		for i, c := range res.Removed {
			names[i], ids[i] = c.Name, c.ID
		}
		if err := a.confirm(yes, "remove "+strings.Join(names, ", ")+"?"); err != nil {
			return err
		}
		shown := service.RemoveRequest{Names: names, IDs: ids}
		if !req.Keep.Empty() {
			shown = service.RemoveRequest{Keep: req.Keep, IDs: ids}
		}
		if res, err = service.Remove.Do(ctx, s, shown, wire.Streams{}); err != nil {
			return err
		}
	}
	res.DryRun = dryRun
	show := a.done
	if dryRun {
		show = a.print
	}
	return show(res, func(w io.Writer) {
		verb := "removed"
		if dryRun {
			verb = "would remove"
		}
		for _, k := range res.Kept {
			fmt.Fprintf(w, "keep %s\t%s\n", k.Name, k.Reason)
		}
		for _, c := range res.Removed {
			fmt.Fprintf(w, "%s %s\t%s, %s\n", verb, c.Name, c.State, size(c.Logical))
		}
		if len(res.Removed) == 0 {
			fmt.Fprintln(w, "nothing to remove")
		} else if !dryRun {
			fmt.Fprintln(w, "gpucr-fs gc gives the space back")
		}
	})
}
