package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

func (a *app) importCmd() *cobra.Command {
	var req service.ImportRequest
	var maxBytes bytesValue
	var labels []string
	var durable bool
	c := &cobra.Command{
		Use:   "import STORE NAME SOURCE",
		Short: "bring an image directory or a checkpoint archive into the store",
		Long: `Import stores SOURCE as the checkpoint NAME. SOURCE is an image directory, or a checkpoint archive
(tar, tar.gz or tar.zst) as podman and the Kubernetes checkpoint API write them, or - for an archive on standard
input. Import either seals a complete checkpoint or changes nothing.

The images of an incremental dump have a link to their parent. The parent must be in the store, under the last part
of the link or the name that --parent gives. Import refuses absolute names, names with "..", links out of the tree,
hard links, devices, and anything that exceeds the limits.`,
		Example: "  gpucr-fs import store/ web-1 /var/lib/dumps/web\n" +
			"  podman container checkpoint web -e /dev/fd/3 3>&1 >/dev/null | gpucr-fs import store/ web-2 -",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Name, req.MaxBytes = args[1], int64(maxBytes)
			if req.Labels, err = label.Parse(labels); err != nil {
				return err
			}
			if err := mayBeDurable(args[0], durable); err != nil {
				return err
			}
			var res service.ImportResult
			if args[2] == "-" {
				res, err = a.importStream(cmd.Context(), args[0], req)
			} else if req.Source, err = filepath.Abs(args[2]); err == nil {
				res, err = do(cmd.Context(), a, args[0], "import "+req.Name, service.Import, req)
			}
			if err != nil {
				return err
			}
			late := a.durable(cmd.Context(), args[0], res.Checkpoint.Name, durable)
			return errors.Join(a.done(res, func(w io.Writer) {
				i := res.Checkpoint
				fmt.Fprintf(
					w, "imported %s: %d files, %s, of which %s zero\n", i.Name, i.Files, size(i.Logical),
					size(i.Zero),
				)
				for _, s := range res.Skipped {
					fmt.Fprintf(w, "left out the socket %s\n", s)
				}
			}), late)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&req.Tags, "tag", nil, "`TAG` of the new checkpoint, may be given again")
	f.StringArrayVar(&labels, "label", nil, "label `KEY=VALUE` of the new checkpoint, may be given again")
	f.StringVar(&req.Parent, "parent", "", "`NAME` of the checkpoint an incremental dump builds on")
	f.IntVar(&req.MaxFiles, "max-files", 0, "most files, directories and links (default 1048576)")
	f.Var(&maxBytes, "max-bytes", "largest sum of file sizes (default 16TiB)")
	addDurable(f, &durable)
	f.Int64Var(&req.MaxRatio, "max-ratio", 0, "most `TIMES` an archive may expand, beyond 1 GiB (default 1000)")
	return c
}

// importStream imports from standard input.
func (a *app) importStream(
	ctx context.Context,
	dir string,
	req service.ImportRequest,
) (res service.ImportResult, err error) {
	if term.IsTerminal(int(a.in.Fd())) {
		return res, usage(errors.New("standard input is a terminal"), "pipe an archive into it")
	}
	p := a.progress("import " + req.Name)
	defer p.close()
	err = a.session(ctx, dir, func(s *client.Session) error {
		res, err = service.Import.Do(ctx, s, req, wire.Streams{In: a.in, Progress: p.tell})
		return err
	})
	return res, err
}
