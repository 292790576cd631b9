package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) verifyCmd() *cobra.Command {
	var subset shareValue
	var rate bytesValue
	var resume, remote bool
	c := &cobra.Command{
		Use:   "verify STORE [NAME...]",
		Short: "check stored checkpoints for damage",
		Long: `Verify reads the payload of all checkpoints, or of those that you name, and checks that it is what was
written. It shows all damage with its checkpoint and file, and exits with 12 if there is any. It also shows files in
the store that belong to no checkpoint. --read-data-subset reads only a random share of the payload.

--rate limits how much is read in a second. Verify saves its progress in the store every few seconds. After an
interruption, --resume continues from there, and also reads what is new. It checks known damage again, so the result
is complete. Without --resume verify reads everything. gc waits until verify ends.

--remote checks the bucket, for all machines: that each checkpoint there has everything that it needs, and the
payload, or the share of it that you ask for. New checkpoints do not use what it has found damaged.`,
		Example: `  gpucr-fs verify store/
  gpucr-fs verify --rate 100MiB --resume store/
  gpucr-fs verify --read-data-subset 5% store/
  gpucr-fs verify --remote --read-data-subset 5% store/`,
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				return a.verifyRemote(
					cmd.Context(), args[0], service.RemoteVerifyRequest{Names: args[1:], Subset: float64(subset)},
				)
			}
			req := service.VerifyRequest{Refs: args[1:], Subset: float64(subset), Rate: int64(rate), Resume: resume}
			res, err := do(cmd.Context(), a, args[0], "verify", service.Verify, req)
			if errors.Is(err, context.Canceled) && len(args) == 1 && subset == 0 {
				return &codeError{exitError, "go on where it was with: gpucr-fs verify --resume " + args[0], err}
			}
			if err != nil {
				return err
			}
			if err := a.print(res, func(w io.Writer) { printVerify(w, res) }); err != nil {
				return err
			}
			if n := len(res.Problems); n > 0 {
				return &codeError{
					exitCorrupt,
					"dump the damaged checkpoints again, remove them and collect with gc",
					fmt.Errorf("verify: %d problems found", n),
				}
			}
			return nil
		},
	}
	c.Flags().Var(&subset, "read-data-subset", "share of the payload to read, like 5% or 1/20")
	c.Flags().Var(&rate, "rate", "bytes of payload read in a second (default: no bound)")
	c.Flags().BoolVar(&remote, "remote", false, "check the remote store")
	c.Flags().BoolVar(&resume, "resume", false, "continue an interrupted verification, or begin one")
	return c
}

func printVerify(w io.Writer, res index.VerifyResult) {
	for _, p := range res.Problems {
		where := p.Pack
		if p.Checkpoint != "" {
			where = "checkpoint " + p.Checkpoint
			if p.File != "" {
				where += fmt.Sprintf(", file %s, offset %d", shown(p.File), p.Offset)
			}
		}
		fmt.Fprintf(w, "damaged: %s: %s\n", dash(where), shown(p.Text))
	}
	printAside(w, "set aside", res.SetAside)
	state := "sound"
	if len(res.Problems) > 0 {
		state = "damaged"
	}
	fmt.Fprintf(w, "%s: %d checkpoints, %d chunks, %s read", state, res.Checkpoints, res.Chunks, size(res.Bytes))
	if res.Distant > 0 {
		fmt.Fprintf(w, ", %d chunks in the bucket were not read", res.Distant)
	}
	if !res.Begun.IsZero() {
		fmt.Fprintf(w, ", %s before, since %s", size(res.Earlier), when(res.Begun))
	}
	fmt.Fprintln(w)
}

// printAside shows what a store keeps without being able to account for it.
func printAside(w io.Writer, what string, list []index.SetAside) {
	for _, s := range list {
		fmt.Fprintf(w, "%s: %s", what, shown(s.File))
		if s.Bytes > 0 {
			fmt.Fprintf(w, ", %s at offset %d", size(s.Bytes), s.Offset)
		}
		fmt.Fprintf(w, ": %s\n", shown(s.Text))
	}
}

func (a *app) warnAside(list []index.SetAside) {
	if len(list) == 0 {
		return
	}
	const what = "warning"
	if a.json {
		var text strings.Builder
		printAside(&text, what, list)
		a.note("%s", &text)
		return
	}
	printAside(a.err, what, list)
	fmt.Fprintln(a.err, "hint: look with gpucr-fs verify, mend with gpucr-fs repair")
}
