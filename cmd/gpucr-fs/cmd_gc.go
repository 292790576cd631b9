package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) gcCmd() *cobra.Command {
	var dryRun, yes, remote bool
	var patience time.Duration
	var most bytesValue = 4 << 30
	c := &cobra.Command{
		Use:   "gc STORE",
		Short: "give back the space that no checkpoint uses",
		Long: `Gc gives the space that no checkpoint uses back to the file system. It also removes incomplete
checkpoints whose writers have died. It asks for confirmation only when there are incomplete checkpoints.

With --remote it removes from the remote store what no checkpoint there needs. It waits until removed checkpoints
and abandoned uploads have been unchanged for --patience, so that readers and slow uploads can finish. Run it now
and then: each run remembers what it saw. It also repacks: what is in use of packs that are less than half in use is
copied into new ones, and the old ones go with a later run. --max-repack bounds what a run reads and writes for
that.`,
		Example: "  gpucr-fs gc -n store/\n  gpucr-fs gc -y store/",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				return a.gcRemote(cmd.Context(), args[0], service.RemoteGCRequest{Patience: patience,
					Repack: int64(most), DryRun: dryRun})
			}
			return a.session(
				cmd.Context(), args[0], func(s *client.Session) error { return a.gc(cmd.Context(), s, dryRun, yes) },
			)
		},
	}
	c.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "only show what would be given back")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&remote, "remote", false, "remove from the remote store what no checkpoint there needs")
	c.Flags().Var(&most, "max-repack",
		"with --remote: most bytes to read and write to repack packs that are less than half in use; 0: they stay")
	c.Flags().DurationVar(&patience, "patience", 15*time.Minute,
		"with --remote: how long an upload must stand still to count as abandoned, and how long readers of removed "+
			"checkpoints may go on")
	return c
}

func (a *app) gc(ctx context.Context, s *client.Session, dryRun, yes bool) error {
	if !dryRun {
		if err := a.confirmIncomplete(ctx, s, yes); err != nil {
			return err
		}
	}
	p := a.progress("gc")
	res, err := service.Collect.Do(ctx, s, service.CollectRequest{DryRun: dryRun}, wire.Streams{Progress: p.tell})
	p.close()
	if err != nil {
		return err
	}
	show := a.done
	if dryRun {
		show = a.print
	}
	return errors.Join(show(res, func(w io.Writer) {
		fmt.Fprintf(
			w, "reclaimable\t%s in %d dead chunks; %d are live\n", size(res.Reclaimable), res.DeadChunks,
			res.LiveChunks,
		)
		if !dryRun {
			fmt.Fprintf(w, "reclaimed\t%s, %d packs dropped\n", size(res.Reclaimed), res.PacksGone)
		}
		if res.Forgotten > 0 {
			fmt.Fprintf(w, "forgotten\t%d packs of the bucket that nothing needs\n", res.Forgotten)
		}
		if len(res.Kept) > 0 {
			fmt.Fprintf(
				w,
				"kept\t%s: their journals do not tell all that they hold; see gpucr-fs verify\n",
				strings.Join(res.Kept, ", "),
			)
		}
		if len(res.Incomplete) > 0 {
			verb := "removed"
			if dryRun {
				verb = "would remove"
			}
			fmt.Fprintf(w, "%s\tthe incomplete %s\n", verb, strings.Join(res.Incomplete, ", "))
		}
	}), res.Err())
}

// confirmIncomplete asks, unless yes, whether the incomplete checkpoints may go, where there are any.
func (a *app) confirmIncomplete(ctx context.Context, s *client.Session, yes bool) error {
	if yes {
		return nil
	}
	list, err := service.Names.Do(ctx, s, service.NamesRequest{}, wire.Streams{})
	if err != nil {
		return err
	}
	var lost []string
	for _, c := range list.Checkpoints {
		if c.State == index.Incomplete {
			lost = append(lost, c.Name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return a.confirm(false, "remove the incomplete "+strings.Join(lost, ", ")+"?")
}
