package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) syncCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "sync STORE [NAME...]",
		Short: "upload checkpoints to the remote store",
		Long: `Sync uploads sealed checkpoints to the remote store, either all or those that you name, and returns
when they are there. It does not send data that the remote store already has. It never replaces a checkpoint of
another machine with the same name.

A daemon uploads sealed checkpoints by itself. Sync waits for it, uploads what was sealed without a daemon, and
uploads again what another machine has removed.`,
		Example: "  gpucr-fs sync store/\n  gpucr-fs sync store/ web-7",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(cmd.Context(), a, args[0], "sync", service.Sync, service.SyncRequest{Names: args[1:]})
			show := a.done(res, func(w io.Writer) {
				for _, c := range res.Checkpoints {
					switch {
					case c.Error != "":
						fmt.Fprintf(w, "%s: not taken: %s\n", c.Name, c.Error)
					case c.Already:
						fmt.Fprintf(w, "%s: was there\n", c.Name)
					default:
						fmt.Fprintf(
							w, "%s: sent %s in %d packs, refers to %d packs of others\n", c.Name, size(c.Bytes),
							c.Packs, c.Known,
						)
					}
				}
			})
			if err != nil {
				return err
			}
			return show
		},
	}
}

// addDurable adds --durable.
func addDurable(f *pflag.FlagSet, on *bool) {
	f.BoolVar(on, "durable", false, "return when the checkpoint is in the remote store")
}

// mayBeDurable refuses --durable where there is no remote store, before anything is done.
func mayBeDurable(dir string, on bool) error {
	if !on {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, remotes.FileName)); err != nil {
		return usage(errors.New("--durable needs a store with a remote store, and this one has none"),
			"make a store with one: gpucr-fs init --remote s3://BUCKET/PREFIX STORE")
	}
	return nil
}

// durable waits, if on, until a checkpoint that was just sealed stands in the remote store.
func (a *app) durable(ctx context.Context, dir, name string, on bool) error {
	if !on {
		return nil
	}
	_, err := do(ctx, a, dir, "upload "+name, service.Sync, service.SyncRequest{Names: []string{name}})
	if err == nil {
		return nil
	}
	hint := "gpucr-fs sync " + dir + " " + name + " takes it there later"
	if h := index.HintOf(err); h != "" {
		hint = h + "; " + hint
	}
	return &codeError{exitPartial, hint, fmt.Errorf("%s is sealed here, and not in the remote store: %w", name, err)}
}

func (a *app) pullCmd() *cobra.Command {
	var req service.PullRequest
	c := &cobra.Command{
		Use:   "pull STORE NAME",
		Short: "add a checkpoint of the remote store to this store",
		Long: `Pull adds a checkpoint of the remote store to this store. Its contents are fetched when they are read.
Restore and mount --checkpoint do this by themselves for a name that this store does not have.`,
		Example: "  gpucr-fs pull store/ web-7\n  gpucr-fs pull store/ web-7 --as web-7-of-node-3",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[1]
			res, err := do(cmd.Context(), a, args[0], "", service.Pull, req)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) { fmt.Fprintf(w, "%s can be restored here\n", res.Name) })
		},
	}
	c.Flags().StringVar(&req.As, "as", "", "the `NAME` it is to have in this store")
	return c
}

// lsRemote lists the remote store.
func (a *app) lsRemote(ctx context.Context, dir string) error {
	res, err := do(ctx, a, dir, "", service.RemoteList, service.RemoteListRequest{})
	if err != nil {
		return err
	}
	show := a.print(res, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tSEALED\tFILES\tLOGICAL\tZERO\tSTORED\tPARENT\tHOST\tUSER\tCOMMAND\tLABELS")
		for _, e := range res.Checkpoints {
			fmt.Fprintf(
				w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", e.Name, when(e.Sealed), e.Files, size(e.Logical), size(e.Zero),
				size(e.Stored), dash(e.Parent), labelColumns(e.Labels),
			)
		}
	})
	return errors.Join(show, unreadOf("ls", res.Unread))
}

// unreadOf gives an error that names what op's list of the remote store lacks; nil where it lacks nothing.
func unreadOf(op string, unread []string) error {
	if len(unread) == 0 {
		return nil
	}
	for i := range unread {
		unread[i] = shown(unread[i])
	}
	return &index.Error{
		Class: index.Corrupt,
		Op:    op,
		Err:   fmt.Errorf("%d in the remote store could not be read: %s", len(unread), strings.Join(unread, "; ")),
		Hint:  "look with gpucr-fs verify --remote",
	}
}

// verifyRemote checks the remote store.
func (a *app) verifyRemote(ctx context.Context, dir string, req service.RemoteVerifyRequest) error {
	res, err := do(ctx, a, dir, "verify", service.RemoteVerify, req)
	if err != nil {
		return err
	}
	err = a.print(res, func(w io.Writer) {
		for _, p := range res.Problems {
			fmt.Fprintf(w, "damaged: checkpoint %s, pack %s: %s\n", dash(p.Checkpoint), dash(p.Pack), shown(p.Text))
		}
		state := "sound"
		if len(res.Problems) > 0 {
			state = "damaged"
		}
		fmt.Fprintf(
			w, "%s: %d checkpoints, %d packs, %d chunks, %s read\n", state, res.Checkpoints, res.Packs, res.Chunks,
			size(res.Bytes),
		)
	})
	if n := len(res.Problems); err == nil && n > 0 {
		err = &codeError{exitCorrupt, "sync them anew where they were dumped, after gpucr-fs rm --remote",
			fmt.Errorf("verify: %d problems found in the remote store", n)}
	}
	return err
}

// rmRemote removes checkpoints from the remote store.
func (a *app) rmRemote(ctx context.Context, dir string, names []string, yes bool) error {
	if len(names) == 0 {
		return usage(errors.New("rm --remote needs the names of checkpoints"), "gpucr-fs ls --remote STORE shows them")
	}
	if err := a.confirm(yes,
		"remove "+strings.Join(names, ", ")+" from the remote store, for all machines?"); err != nil {
		return err
	}
	res, err := do(ctx, a, dir, "", service.RemoteRemove, service.RemoteRemoveRequest{Names: names})
	if err != nil && len(res.Names) == 0 {
		return err
	}
	show := a.done(res, func(w io.Writer) { fmt.Fprintf(w, "removed %s\n", strings.Join(res.Names, ", ")) })
	if err != nil { // of those that were not removed
		return err
	}
	return show
}

// gcRemote gives back what no checkpoint of the remote store needs.
func (a *app) gcRemote(ctx context.Context, dir string, req service.RemoteGCRequest) error {
	res, err := do(ctx, a, dir, "", service.RemoteGC, req)
	if err != nil {
		return err
	}
	show, removed, repacked := a.done, "removed", "repacked"
	if req.DryRun {
		show, removed, repacked = a.print, "would remove", "would repack"
	}
	return show(res, func(w io.Writer) {
		fmt.Fprintf(w, "%s %d packs, %s; %d abandoned pushes\n", removed, res.Packs, size(res.Bytes), res.Abandoned)
		r := res.Repacked
		if r.Packs > 0 {
			fmt.Fprintf(
				w, "%s %d packs less than half in use, %s; what is in use of them takes %s\n", repacked, r.Packs,
				size(r.Bytes), size(r.Copied),
			)
		}
		if r.Read+r.Written > 0 {
			fmt.Fprintf(
				w, "for that %s were read and %s written; %d checkpoints have a new list\n", size(r.Read),
				size(r.Written), r.Checkpoints,
			)
		}
		switch {
		case r.Busy:
			fmt.Fprintf(w, "%d packs less than half in use stay for now: another machine repacks\n", r.Left)
		case r.Left > 0:
			fmt.Fprintf(w, "%d packs less than half in use stay: see --max-repack and verify --remote\n", r.Left)
		}
		if res.Watched > 0 {
			fmt.Fprintf(
				w,
				"%d pushes, removed checkpoints, removed hot sets and older lists keep their packs; they are let go "+
					"when a gc --remote finds them unchanged for %v\n",
				res.Watched,
				req.Patience,
			)
		}
	})
}
