package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) repairCmd() *cobra.Command {
	var address string
	var cache bytesValue = remotes.DefaultCache
	c := &cobra.Command{
		Use:   "repair STORE",
		Short: "rebuild a lost or damaged index from the packs",
		Long: `Repair rebuilds the index of a store from the journals beside its packs. If a journal is damaged or
missing, repair uses the old index and writes a new journal. If data may be missing after that, repair sets the
damaged journal aside, and gc keeps everything that the journal may refer to. Then either restore the journal's bytes
and repair again, or remove the journal to give up that data. Unmount the store first. The exit code is 3 when some
checkpoints could not be brought back.

--remote makes a store in an empty folder, for a machine that has lost its own. Afterwards you can list and restore
the checkpoints in the remote store at that address. The remote store must exist; init --remote makes one.`,
		Example: "  gpucr-fs repair store/ && gpucr-fs verify store/\n" +
			"  gpucr-fs repair --remote 's3://bucket/checkpoints?endpoint=https://s3.example.org' store/ && " +
			"gpucr-fs restore store/ web-7",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if address != "" {
				return a.repairFrom(cmd.Context(), args[0], address, int64(cache))
			}
			var res index.RepairResult
			p := a.progress("repair")
			err := untilSettled(cmd.Context(), args[0], func(settled func()) error {
				s, ok, err := client.ConnectDaemon(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if ok {
					s.Close()
					settled()
					return &index.Error{Class: index.InUse, Op: "repair", Err: errors.New("a daemon serves the store"),
						Hint: "unmount it first"}
				}
				res, err = index.Repair(cmd.Context(), args[0], a.index.options())
				return err
			})
			p.close()
			if err != nil {
				return err
			}
			if res.Lost == nil {
				res.Lost = []string{}
			}
			if err := a.done(res, func(w io.Writer) {
				fmt.Fprintf(w, "brought back %d checkpoints, %d chunks in %d packs\n",
					res.Checkpoints, res.Chunks, res.Packs)
				for _, l := range res.Lost {
					fmt.Fprintf(w, "lost %s\n", l)
				}
				printAside(w, "set aside", res.SetAside)
			}); err != nil {
				return err
			}
			if n := len(res.Lost); n > 0 {
				return &codeError{exitPartial, "", fmt.Errorf("repair: %d checkpoints are lost", n)}
			}
			return nil
		},
	}
	c.Flags().StringVar(&address, "remote", "", "make a store in an empty folder, with the remote store at `ADDRESS`")
	c.Flags().Var(&cache, "cache-disk", "with --remote: most disk space for what is fetched")
	return c
}

// repairFrom makes a store of an empty folder for the remote store at an address.
func (a *app) repairFrom(ctx context.Context, dir, address string, cache int64) error {
	var o index.InitOptions
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return usage(
			fmt.Errorf("repair --remote needs an empty folder, and %s is none", dir),
			"gpucr-fs repair STORE mends the store that is there",
		)
	}
	k := remotes.Keys{Access: a.index.access}
	f, ring, err := remotes.Join(ctx, address, cache, k, slog.New(slog.DiscardHandler))
	o.Ring = ring
	if err == nil {
		err = joined(f, &o)
	}
	if err == nil {
		err = index.Init(dir, o)
	}
	if err != nil {
		return err
	}
	res, err := do(ctx, a, dir, "", service.RemoteList, service.RemoteListRequest{})
	if err != nil {
		return err
	}
	made := a.done(res, func(w io.Writer) {
		fmt.Fprintf(w, "made a store in %s; %d checkpoints of %s can be restored\n", dir, len(res.Checkpoints), address)
	})
	return errors.Join(made, unreadOf("repair", res.Unread))
}
