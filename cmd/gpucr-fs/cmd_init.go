package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) initCmd() *cobra.Command {
	var compression string
	var pack, cache bytesValue
	var address string
	var encrypt bool
	var recipients []string
	c := &cobra.Command{
		Use:   "init STORE",
		Short: "make an empty store",
		Long: `Init makes an empty store. With --remote its checkpoints can be uploaded to a bucket that many
machines share (see sync), and checkpoints of other machines can be restored from there on demand. The first machine
makes the remote store in the bucket. Init first tests whether the server supports conditional writes. Credentials
are found as Amazon's tools find them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the shared file, or the
machine's role.

With --encrypt nobody can read contents or metadata (names of files, labels, manifests) of the store or its bucket
without the key. Names of checkpoints in a bucket, sizes and times are not hidden. Init makes the key and wraps it
for each --recipient, with the passphrase of --passphrase-file, and by --key-command. The key command is a shell
command. With GPUCR_FS_KEY_ACTION=wrap it gets the key in base64 on its standard input and prints it wrapped; with
GPUCR_FS_KEY_ACTION=unwrap it does the opposite. To use the store, give --identity (a file of age identities),
--passphrase-file or --key-command, or set GPUCR_FS_IDENTITY, GPUCR_FS_PASSPHRASE_FILE or GPUCR_FS_KEY_COMMAND.
If you lose all of these, nobody can open the store again.`,
		Example: "  gpucr-fs init /var/lib/gpucr-fs\n" +
			"  gpucr-fs init --encrypt --recipient age1... /var/lib/gpucr-fs\n" +
			"  gpucr-fs init --compression none /var/lib/gpucr-fs\n" +
			"  gpucr-fs init --remote 's3://bucket/checkpoints?endpoint=https://s3.example.org' /var/lib/gpucr-fs",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			res := struct {
				Store       string `json:"store"`
				Compression string `json:"compression"`
				Remote      string `json:"remote,omitempty"`
				Fresh       bool   `json:"remote_is_new,omitempty"`
				Encrypted   bool   `json:"encrypted,omitempty"`
			}{Store: dir, Compression: compression, Remote: address}
			o := index.InitOptions{Compression: index.Compression(compression), PackSize: int64(pack)}
			if encrypt {
				if o.Ring, err = a.makeRing(cmd.Context(), recipients); err != nil {
					return err
				}
			} else if len(recipients) > 0 {
				return usage(errors.New("--recipient is for an encrypted store"), "add --encrypt")
			}
			if address != "" {
				p := a.progress("init")
				res.Fresh, err = a.withRemote(cmd.Context(), dir, address, int64(cache), &o)
				p.close()
				if err != nil {
					return err
				}
			}
			if err := index.Init(dir, o); err != nil {
				return err
			}
			res.Encrypted = o.Ring != nil
			return a.done(res, func(w io.Writer) {
				kind := map[bool]string{true: "empty, encrypted", false: "empty"}[res.Encrypted]
				fmt.Fprintf(w, "made an %s store in %s\n", kind, dir)
				if address != "" {
					fmt.Fprintf(
						w, "%s the remote store at %s\n", map[bool]string{true: "made", false: "joined"}[res.Fresh],
						address,
					)
				}
			})
		},
	}
	c.Flags().
		StringVar(&compression, "compression", string(index.CompressAuto),
			"how chunks are stored: auto, zstd, s2 or none")
	c.Flags().BoolVar(&encrypt, "encrypt", false, "encrypt all contents and metadata")
	c.Flags().
		StringSliceVar(&recipients, "recipient", nil,
			"with --encrypt: age `RECIPIENT` (age1...) who may open the store, may be given again")
	c.Flags().Var(&pack, "pack-size", "size at which a new pack file is begun (default 1GiB)")
	c.Flags().
		StringVar(&address, "remote", "",
			"also use, or make, the remote store at `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`")
	cache = remotes.DefaultCache
	c.Flags().Var(&cache, "cache-disk", "most disk space for what is fetched from the remote store")
	return c
}

// withRemote makes or joins a remote store, and has the store that is about to be made fit it. It first looks whether
// that can be made: a remote store that nobody uses should not be left.
func (a *app) withRemote(
	ctx context.Context,
	dir, address string,
	cache int64,
	o *index.InitOptions,
) (fresh bool, err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return false, index.Init(dir, *o) // says what is wrong
	}
	k := remotes.Keys{Ring: o.Ring, Access: a.index.access}
	f, ring, fresh, err := remotes.Make(ctx, address, cache, index.DefaultParams(), k, slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
	o.Ring = ring
	return fresh, joined(f, o)
}

// joined has the store that is about to be made fit a remote store.
func joined(f remotes.File, o *index.InitOptions) error {
	text, err := json.MarshalIndent(f, "", "\t")
	if err == nil {
		o.Chunk, o.Beside = &f.Config.Chunk, map[string][]byte{remotes.FileName: append(text, '\n')}
	}
	return err
}
