package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) initCmd() *cobra.Command {
	var compression string
	var pack bytesValue
	c := &cobra.Command{
		Use:     "init STORE",
		Short:   "make an empty store",
		Example: "  gpucr-fs init /var/lib/gpucr-fs\n  gpucr-fs init --compression none /var/lib/gpucr-fs",
		Args:    positional,
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if err := index.Init(dir, index.InitOptions{Compression: index.Compression(compression), PackSize: int64(pack)}); err != nil {
				return err
			}
			res := struct {
				Store       string `json:"store"`
				Compression string `json:"compression"`
			}{dir, compression}
			return a.done(res, func(w io.Writer) { fmt.Fprintf(w, "made an empty store in %s\n", dir) })
		},
	}
	c.Flags().StringVar(&compression, "compression", string(index.CompressAuto), "how chunks are stored: auto, zstd, s2 or none")
	c.Flags().Var(&pack, "pack-size", "size at which a new pack file is begun (default 1GiB)")
	return c
}
