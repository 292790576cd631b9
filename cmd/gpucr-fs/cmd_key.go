package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/keyring"
)

// makeRing draws the key of a store that is about to be made.
func (a *app) makeRing(ctx context.Context, recipients []string) (*keyring.Ring, error) {
	w := keyring.Wrap{Recipients: recipients, Passphrase: a.index.access.Passphrase, Command: a.index.access.Command}
	if w.None() {
		return nil, usage(errors.New("nobody could open the store: name the recipients of its key"),
			"add --recipient age1..., --passphrase-file FILE or --key-command COMMAND")
	}
	return keyring.Make(ctx, w)
}

// wrapFlags say for whom a key is wrapped.
type wrapFlags struct {
	recipients          []string
	passphrase, command string
}

func (w *wrapFlags) add(c *cobra.Command) {
	c.Flags().
		StringSliceVar(&w.recipients, "recipient", nil, "wrap it for the age `RECIPIENT` (age1...), may be given again")
	c.Flags().
		StringVar(&w.passphrase, "new-passphrase-file", "", "wrap it with the passphrase in the first line of `FILE`")
	c.Flags().StringVar(&w.command, "new-key-command", "", "wrap it by the shell `COMMAND`")
}

func (w *wrapFlags) wrap() (keyring.Wrap, error) {
	out := keyring.Wrap{Recipients: w.recipients, Passphrase: w.passphrase, Command: w.command}
	if out.None() {
		return out, usage(errors.New("say for whom the key is wrapped"),
			"add --recipient age1..., --new-passphrase-file FILE or --new-key-command COMMAND")
	}
	return out, nil
}

// keyRow is a key as key list shows it.
type keyRow struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Recipient string    `json:"recipient,omitempty"`
	Created   time.Time `json:"created"`
}

func (a *app) keyCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "see and change who can open an encrypted store",
		Long: `An encrypted store has one master key. It is stored wrapped: for age recipients, with passphrases, or
by commands. Key list shows the wrappings, key add adds one, key remove removes one, and key rotate replaces all of
them. These commands change nothing else in the store, and the store may be in use. With a remote store they make
the same change in its object config, beside those of other machines. Other machines keep their own wrappings: run
the command there as well.

The master key itself does not change. A person who has unwrapped it before, and kept it or a copy of the old
wrapping, can still read any data of the store. No command can undo that. Where that matters, make a new store and
copy the checkpoints with export and import.`,
		Example: "  gpucr-fs key list store/\n  gpucr-fs key add store/ --identity me.txt --recipient age1...",
		Args:    subcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.keyListCmd(), a.keyAddCmd(), a.keyRemoveCmd(), a.keyRotateCmd())
	return c
}

func (a *app) printKeys(r *keyring.Ring, print func(any, func(io.Writer)) error) error {
	rows := make([]keyRow, len(r.Keys))
	for i, k := range r.Keys {
		rows[i] = keyRow{k.ID, k.Kind, k.Recipient, k.Created}
	}
	return print(map[string]any{"keys": rows}, func(w io.Writer) {
		fmt.Fprintf(w, "ID\tKIND\tCREATED\tRECIPIENT\n")
		for _, k := range rows {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.ID, k.Kind, k.Created.Format(time.DateTime), dash(k.Recipient))
		}
	})
}

func (a *app) keyListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list STORE", Short: "show for whom the key of a store is wrapped", Args: positional,
		Example: "  gpucr-fs key list store/",
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := index.Ring(args[0])
			if err != nil {
				return err
			}
			return a.printKeys(r, a.print)
		},
	}
}

// changeKeys changes the wrapped keys of a store, and of its remote store.
func (a *app) changeKeys(ctx context.Context, dir string, change func(*keyring.Ring) error) error {
	r, err := remotes.ChangeKeys(ctx, dir, func(r *keyring.Ring) error {
		err := change(r)
		if err == nil {
			return nil
		}
		class := index.Invalid
		if errors.Is(err, keyring.ErrNoKey) || errors.Is(err, keyring.ErrWrongKey) {
			class = index.Locked
		}
		return &index.Error{Class: class, Op: "change keys", File: dir, Err: err, Hint: keyring.Hint}
	})
	if err != nil {
		return err
	}
	return a.printKeys(r, a.done)
}

func (a *app) keyAddCmd() *cobra.Command {
	var w wrapFlags
	c := &cobra.Command{
		Use: "add STORE", Short: "let another person open a store", Args: positional,
		Example: "  gpucr-fs key add store/ --identity me.txt --recipient age1...",
		RunE: func(cmd *cobra.Command, args []string) error {
			wrap, err := w.wrap()
			if err != nil {
				return err
			}
			return a.changeKeys(cmd.Context(), args[0],
				func(r *keyring.Ring) error { return r.Add(cmd.Context(), a.index.access, wrap) })
		},
	}
	w.add(c)
	return c
}

func (a *app) keyRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use: "remove STORE ID", Short: "take away a wrapping of the key of a store", Args: positional,
		Example: "  gpucr-fs key remove store/ 05351b7a",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeKeys(cmd.Context(), args[0], func(r *keyring.Ring) error { return r.Remove(args[1]) })
		},
	}
}

func (a *app) keyRotateCmd() *cobra.Command {
	var w wrapFlags
	c := &cobra.Command{
		Use: "rotate STORE", Short: "wrap the key of a store anew, and drop all old wrappings", Args: positional,
		Example: "  gpucr-fs key rotate store/ --identity me.txt --recipient age1... --recipient age1...",
		Long: `Rotate wraps the master key for those whom the flags name, and removes all other wrappings. It
changes neither contents nor the master key: a person who has unwrapped that key before, or has an old wrapping and
what opens it, can still read the store's files.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			wrap, err := w.wrap()
			if err != nil {
				return err
			}
			return a.changeKeys(cmd.Context(), args[0],
				func(r *keyring.Ring) error { return r.Rotate(cmd.Context(), a.index.access, wrap) })
		},
	}
	w.add(c)
	return c
}
