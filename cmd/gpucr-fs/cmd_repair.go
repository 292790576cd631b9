package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) repairCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "repair STORE",
		Short: "rebuild a lost or damaged index from the packs",
		Long: `Repair rebuilds the index of a store from the journals beside its packs. Where a journal is damaged or gone it takes what the old index knows and writes a new one. If
that may not be all, the damaged journal is set aside, and gc keeps all that it may have told of: put its bytes right and repair again, or remove it to give that up.
Nothing may be mounted meanwhile. The exit code is 3 when some checkpoints could not be brought back.`,
		Example: "  gpucr-fs repair store/ && gpucr-fs verify store/",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s, ok, err := client.ConnectDaemon(cmd.Context(), args[0]); err != nil {
				return err
			} else if ok {
				s.Close()
				return &index.Error{Class: index.InUse, Op: "repair", Err: errors.New("a daemon serves the store"), Hint: "unmount it first"}
			}
			res, err := index.Repair(cmd.Context(), args[0], a.index.options())
			if err != nil {
				return err
			}
			if res.Lost == nil {
				res.Lost = []string{}
			}
			if err := a.done(res, func(w io.Writer) {
				fmt.Fprintf(w, "brought back %d checkpoints, %d chunks in %d packs\n", res.Checkpoints, res.Chunks, res.Packs)
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
}
