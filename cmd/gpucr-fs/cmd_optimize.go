package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

func (a *app) optimizeCmd() *cobra.Command {
	var dryRun, gc, yes bool
	var rate bytesValue
	c := &cobra.Command{
		Use:   "optimize STORE",
		Short: "compress stored data better",
		Long: `Optimize compresses stored data better. Dumps and imports compress it fast, or not at all. Every new
chunk is read back from the disk and checked before the old one is given up. The old chunks take space until the next
gc; --gc runs it at once. You can interrupt optimize at any time; the next run goes on where it stopped.

It uses one processor, and slows down to 4 MiB a second while a checkpoint is being written or a restore still needs
memory. Optimized data takes more processor time to read. STORED in ls and du is the size before optimize; the disk
size in du is the current one.`,
		Example: "  gpucr-fs optimize -n store/\n" +
			"  gpucr-fs optimize --gc store/\n" +
			"  gpucr-fs optimize --rate 50MiB store/",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.session(cmd.Context(), args[0], func(s *client.Session) error {
				return a.optimize(
					cmd.Context(), s, service.OptimizeRequest{DryRun: dryRun, Rate: int64(rate)}, gc && !dryRun, yes,
				)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&dryRun, "dry-run", "n", false, "compress and count, and write nothing")
	f.Var(&rate, "rate", "bytes a second read at most (default: no bound)")
	f.BoolVar(&gc, "gc", false, "give the space back at once, as gc does")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask whether gc may remove incomplete checkpoints")
	return c
}

// optimizeOutput is what optimize prints as JSON.
type optimizeOutput struct {
	service.OptimizeResult
	GC *service.CollectResult `json:"gc,omitempty"`
}

func (a *app) optimize(ctx context.Context, s *client.Session, r service.OptimizeRequest, gc, yes bool) error {
	if gc {
		if err := a.confirmIncomplete(ctx, s, yes); err != nil {
			return err
		}
	}
	p := a.progress("optimize")
	res, err := service.Optimize.Do(ctx, s, r, wire.Streams{Progress: p.tell})
	p.close()
	if err != nil {
		return err
	}
	out := optimizeOutput{OptimizeResult: res}
	if gc {
		p := a.progress("gc")
		collected, err := service.Collect.Do(ctx, s, service.CollectRequest{}, wire.Streams{Progress: p.tell})
		p.close()
		if err != nil {
			return err
		}
		out.GC = &collected
	}
	show := a.done
	if r.DryRun {
		show = a.print
	}
	if err := show(out, func(w io.Writer) {
		what := "rewritten"
		if r.DryRun {
			what = "would rewrite"
		}
		fmt.Fprintf(w, "%s\t%d of %d chunks: %s in place of %s\n", what,
			res.Rewritten, res.Chunks, size(res.After), size(res.Before))
		switch {
		case out.GC != nil:
			fmt.Fprintf(w, "reclaimed\t%s, %d packs dropped\n", size(out.GC.Reclaimed), out.GC.PacksGone)
		case res.Rewritten > 0 && !r.DryRun:
			fmt.Fprintf(w, "the old ones take %s until the next gpucr-fs gc\n", size(res.Before))
		}
	}); err != nil || res.Damaged == 0 {
		return err
	}
	return &codeError{exitCorrupt, "gpucr-fs verify names them",
		fmt.Errorf("optimized but for %d chunks that could not be read", res.Damaged)}
}
