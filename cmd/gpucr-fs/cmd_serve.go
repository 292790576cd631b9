package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/lifecycle"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// defaultPage is where serve serves the page when it is not told.
const defaultPage = "127.0.0.1:9100"

// serving adds the flags of what a daemon serves beside its mounts.
func (a *app) serving(c *cobra.Command, r *mounts.Request) {
	f := c.Flags()
	f.StringVar(
		&r.PageAddr, "http", "",
		"serve a page that shows the store, and the metrics, at `ADDR`: HOST:PORT or unix:PATH",
	)
	f.StringVar(&r.MetricsAddr, "metrics-addr", "", "serve Prometheus at `ADDR`/metrics: HOST:PORT or unix:PATH")
	f.StringVar(
		&r.TokenFile, "token-file", "",
		"`FILE` with the token that clients of page and metrics must send; needed for addresses other than loopback",
	)
}

// absToken makes the path of the token file one that the daemon understands.
func absToken(r *mounts.Request) (err error) {
	if r.TokenFile != "" {
		r.TokenFile, err = filepath.Abs(r.TokenFile)
	}
	return err
}

// printServed tells where a daemon serves the page and the metrics.
func printServed(w io.Writer, res mounts.Result) {
	for _, at := range []struct{ name, addr, path string }{{"page", res.Page, "/"},
		{"metrics", res.Metrics, "/metrics"}} {
		switch {
		case at.addr == "":
		case strings.HasPrefix(at.addr, "unix:"):
			fmt.Fprintf(w, "%s at %s\n", at.name, at.addr)
		default:
			fmt.Fprintf(w, "%s at http://%s%s\n", at.name, at.addr, at.path)
		}
	}
}

func (a *app) serveCmd() *cobra.Command {
	var r mounts.Request
	c := &cobra.Command{
		Use:   "serve STORE",
		Short: "show a store in a browser",
		Long: `Serve shows a store in a browser until you interrupt it: checkpoints and the space they take, what
would be free without them, their processes and GPUs, restores in progress, and errors. The page changes nothing in
the store.

Serve mounts nothing. If the store already has a daemon, that daemon serves the page, and keeps serving it after you
interrupt the command, as long as it has mounts. Otherwise the command itself becomes the store's daemon. To serve
the page beside a mount use mount --http.

With a loopback address everybody on this machine can open the page. Any other address needs --token-file. With
unix:PATH only root can open it; ssh -L 9100:PATH HOST brings such a page to another machine.`,
		Example: "  gpucr-fs serve store/\n" +
			"  gpucr-fs serve --http 10.0.0.7:9100 --token-file /etc/gpucr-fs/token store/",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.PageAddr == "" && r.MetricsAddr == "" {
				r.PageAddr = defaultPage
			}
			if err := absToken(&r); err != nil {
				return err
			}
			if err := needStore(args[0]); err != nil {
				return err
			}
			spec, err := a.spec(args[0])
			if err != nil {
				return err
			}
			r.ReadOnly = a.index.readOnly
			spec.Mount, spec.Stays, spec.ReadOnly = r, true, a.index.readOnly
			spec.Log = lifecycle.DefaultLog(spec.Store, a.index.readOnly)
			return a.serve(cmd.Context(), spec)
		},
	}
	a.serving(c, &r)
	a.reads(c)
	return c
}

// serve serves the page of a store through its daemon, or as its daemon. It waits a moment for another command that has
// the store open.
func (a *app) serve(ctx context.Context, spec daemonSpec) error {
	return untilSettled(ctx, spec.Store, func(settled func()) error {
		return serveOnce(ctx, spec, func(res mounts.Result, err error) error {
			if err != nil {
				return err
			}
			settled()
			return a.done(res, func(w io.Writer) { printServed(w, res) })
		})
	})
}

func serveOnce(ctx context.Context, spec daemonSpec, tell func(mounts.Result, error) error) error {
	s, ok, err := client.ConnectDaemon(ctx, spec.Store)
	if err != nil {
		return err
	}
	if !ok {
		log, err := lifecycle.OpenLogFile(spec.Log, logLimit)
		if err != nil {
			return err
		}
		defer log.Close()
		return serve(ctx, spec, log, tell)
	}
	defer s.Close()
	if err := tell(service.AddMount.Do(ctx, s, spec.Mount, wire.Streams{})); err != nil {
		return err
	}
	if err := s.Hold(ctx); !errors.Is(err, wire.ErrGone) {
		return err
	}
	return fmt.Errorf("the store's daemon has ended")
}
