package main

import (
	"context"
	"encoding/json"
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
	c := &cobra.Command{
		Use:   "init STORE",
		Short: "make an empty store",
		Long: `Init makes an empty store. With --remote its checkpoints can be taken to a bucket that many machines share (sync), and those of
other machines be restored from it on demand. The first machine makes the remote store there; init first finds out whether the server keeps
conditional writes. Credentials are found as Amazon's tools find them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the shared file, the machine's role.`,
		Example: "  gpucr-fs init /var/lib/gpucr-fs\n  gpucr-fs init --compression none /var/lib/gpucr-fs\n" +
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
			}{Store: dir, Compression: compression, Remote: address}
			o := index.InitOptions{Compression: index.Compression(compression), PackSize: int64(pack)}
			if address != "" {
				p := a.progress("init")
				res.Fresh, err = withRemote(cmd.Context(), dir, address, int64(cache), &o)
				p.close()
				if err != nil {
					return err
				}
			}
			if err := index.Init(dir, o); err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) {
				fmt.Fprintf(w, "made an empty store in %s\n", dir)
				if address != "" {
					fmt.Fprintf(w, "%s the remote store at %s\n", map[bool]string{true: "made", false: "joined"}[res.Fresh], address)
				}
			})
		},
	}
	c.Flags().StringVar(&compression, "compression", string(index.CompressAuto), "how chunks are stored: auto, zstd, s2 or none")
	c.Flags().Var(&pack, "pack-size", "size at which a new pack file is begun (default 1GiB)")
	c.Flags().StringVar(&address, "remote", "", "also use, or make, the remote store at `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`")
	cache = remotes.DefaultCache
	c.Flags().Var(&cache, "cache-disk", "disk that what is fetched of the remote store may take (default 32GiB)")
	return c
}

// withRemote makes or joins a remote store, and has the store that is about to be made fit it. It first looks whether
// that can be made: a remote store that nobody uses should not be left.
func withRemote(ctx context.Context, dir, address string, cache int64, o *index.InitOptions) (fresh bool, err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return false, index.Init(dir, *o) // says what is wrong
	}
	f, fresh, err := remotes.Make(ctx, address, cache, index.DefaultParams(), slog.New(slog.DiscardHandler))
	if err != nil {
		return false, err
	}
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
