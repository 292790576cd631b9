package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/archive"
	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

func (a *app) exportCmd() *cobra.Command {
	var compression string
	c := &cobra.Command{
		Use:   "export STORE NAME TARGET",
		Short: "write a checkpoint to a directory, an archive or standard output",
		Long: `Export writes a checkpoint to the directory TARGET, which must be empty or not exist yet. If TARGET
ends in .tar, .tar.gz or .tar.zst, export writes an archive. If TARGET is -, it writes a tar stream to standard
output. Files and directories get their names only when they are complete and on stable storage. In a directory,
zero pages become holes. NAME is a name, a tag or the beginning of an ID.`,
		Example: "  gpucr-fs export store/ web-1 /tmp/web-1\n" +
			"  gpucr-fs export store/ web-1 web-1.tar.zst\n" +
			"  gpucr-fs export store/ web-1 - | ssh other gpucr-fs import store/ web-1 -",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req := service.ExportRequest{Ref: args[1], Compression: archive.Compression(compression)}
			if args[2] == "-" {
				return a.exportStream(cmd.Context(), args[0], req)
			}
			if req.Target, err = filepath.Abs(args[2]); err != nil {
				return err
			}
			var byName archive.Compression
			if byName, req.Archive = archive.CompressionOf(req.Target); compression == "" {
				req.Compression = byName
			} else if !req.Archive {
				return usage(errors.New("--compression is for archives"),
					"let the target end in .tar, .tar.gz or .tar.zst, or be -")
			}
			res, err := do(cmd.Context(), a, args[0], "export "+req.Ref, service.Export, req)
			if err != nil {
				return err
			}
			return a.done(res, func(w io.Writer) {
				fmt.Fprintf(
					w, "exported %s to %s: %d files, %s, of which %s holes\n", res.Checkpoint, res.Target, res.Files,
					size(res.Bytes), size(res.Holes),
				)
			})
		},
	}
	c.Flags().
		StringVar(&compression, "compression", "",
			"of an archive: none, gzip or zstd (default: by the name of the target)")
	return c
}

// exportStream exports to standard output; the result, where it is asked for, goes to stderr.
func (a *app) exportStream(ctx context.Context, dir string, req service.ExportRequest) error {
	if term.IsTerminal(int(a.out.Fd())) {
		return usage(errors.New("standard output is a terminal"), "pipe it into something, or name a target")
	}
	return a.readingSession(ctx, dir, func(s *client.Session) error {
		p := a.progress("export " + req.Ref)
		res, err := service.Export.Do(ctx, s, req, wire.Streams{Out: a.out, Progress: p.tell})
		p.close()
		if err != nil || !a.json {
			return err
		}
		return a.printTo(a.err, res, nil)
	})
}
