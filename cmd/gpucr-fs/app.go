package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/keyring"
)

// app is what all commands share.
type app struct {
	in  *os.File
	out *os.File
	err *os.File

	json    bool
	quiet   bool
	config  string
	index   indexFlags
	running bool // arguments and configuration were understood
}

// indexFlags are options of an opened store; a running daemon keeps its own.
type indexFlags struct {
	cache   bytesValue
	floor   floorValue
	workers int
	remote  time.Duration // see index.Options.DistantTimeout

	access keyring.Access // to an encrypted store

	readOnly bool // of commands that only read
}

// absolute has the files of the access named from the root: a daemon works there.
func (f *indexFlags) absolute() (keyring.Access, error) {
	a := f.access
	var errs []error
	for _, p := range []*string{&a.Identity, &a.Passphrase} {
		if *p != "" {
			abs, err := filepath.Abs(*p)
			*p, errs = abs, append(errs, err)
		}
	}
	return a, errors.Join(errs...)
}

func (f *indexFlags) options() index.Options {
	return index.Options{CacheSize: int64(f.cache), FreeFloor: int64(f.floor), Workers: f.workers, ReadOnly: f.readOnly,
		DistantTimeout: f.remote, Access: f.access}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpucr-fs",
		Short: "keep CRIU checkpoints deduplicated, mount them, restore from them",
		Long: `gpucr-fs keeps CRIU checkpoints in a deduplicating store and shows them as image directories.

    gpucr-fs mount store/ /images
    criu restore -D /images

Options are read from a configuration file, the environment and the command line. The environment overrides the
file, and the command line overrides both. The file is /etc/gpucr-fs/config.json, or the one that --config names. It
is JSON: {"cache-size": "256MiB", "mount": {"metrics-addr": "127.0.0.1:9100"}}. Variables are named after their
options: GPUCR_FS_CACHE_SIZE sets --cache-size.

Exit codes: 0 done, 1 error, 2 usage, 3 partly done, 10 no store, 11 store in use, 12 corrupt.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			// What this program starts is told all by who starts it. It runs in another directory, maybe much later,
			// and must not fail for a configuration that has gone or is wrong by then.
			if (!cmd.Hidden || cmd.Name() == containerName) && !isSuccessor(cmd) {
				if err := a.configure(cmd); err != nil {
					return err
				}
			}
			a.running = true
			if cmd.Name() == "restore" {
				collect(hastyPercent)
			} else {
				collect(gcPercent)
			}
			return nil
		},
	}
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print JSON")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "show neither progress nor what was done")
	f.StringVar(&a.config, "config", "", "configuration `FILE` (default "+defaultConfig+")")
	f.Var(&a.index.cache, "cache-size", "memory for decoded chunks (default 128MiB)")
	f.Var(&a.index.floor, "free-floor", "disk space that is always kept free, 0 for none (default 256MiB)")
	f.IntVar(&a.index.workers, "workers", 0, "threads that hash, compress and read (default: one a core)")
	f.DurationVar(&a.index.remote, "remote-timeout", remotes.DefaultWait,
		"how long to wait for memory or files from the remote store")
	f.StringVar(&a.index.access.Identity, "identity", "", "`FILE` of age identities that open an encrypted store")
	f.StringVar(&a.index.access.Passphrase, "passphrase-file", "", "`FILE` whose first line opens an encrypted store")
	f.StringVar(
		&a.index.access.Command, "key-command", "", "shell `COMMAND` that unwraps the key of an encrypted store",
	)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(a.commands()...)
	a.completeArguments(root)
	return root
}

func isSuccessor(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("successor")
	return f != nil && f.Changed
}

// commands lists every command; each has its file.
func (a *app) commands() []*cobra.Command {
	reading := []*cobra.Command{
		a.lsCmd(),
		a.infoCmd(),
		a.duCmd(),
		a.diffCmd(),
		a.exportCmd(),
		a.verifyCmd(),
		a.checkCmd(),
		a.statsCmd(),
	}
	for _, c := range reading {
		a.reads(c)
	}
	return append(
		reading,
		a.initCmd(),
		a.keyCmd(),
		a.importCmd(),
		a.mountCmd(),
		a.serveCmd(),
		a.umountCmd(),
		a.sealCmd(),
		a.tagCmd(),
		a.renameCmd(),
		a.labelCmd(),
		a.syncCmd(),
		a.pullCmd(),
		a.rmCmd(),
		a.gcCmd(),
		a.optimizeCmd(),
		a.repairCmd(),
		a.benchCmd(),
		a.versionCmd(),
		a.completionCmd(),
		a.daemonCmd(),
		a.restoreCmd(),
		a.dumpCmd(),
		a.lazyPagesCmd(),
		a.warmupCmd(),
		a.profileCmd(),
		a.guardianCmd(),
		a.cudaCheckpointCmd(),
		a.pluginDirCmd(),
		a.pluginHelperCmd(),
		a.containerCmd(),
		a.mountHelperCmd(),
	)
}

// session calls f with access to the store at dir.
func (a *app) session(ctx context.Context, dir string, f func(*client.Session) error) error {
	s, err := client.Connect(ctx, dir, a.index.options())
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close())
}

// do runs one operation on the store at dir, and shows its progress.
func do[Req, Res any](
	ctx context.Context,
	a *app,
	dir, title string,
	op *service.Op[Req, Res],
	req Req,
) (res Res, err error) {
	session := a.session
	if op.Reads() {
		session = a.readingSession
	}
	if title == "" {
		title = op.Name()
	}
	p := a.progress(title) // opening a store may take its time, too
	defer p.close()
	err = session(ctx, dir, func(s *client.Session) error {
		res, err = op.Do(ctx, s, req, wire.Streams{Progress: p.tell})
		return err
	})
	return res, err
}

// print shows a result: as JSON, or as text does.
func (a *app) print(res any, text func(w io.Writer)) error {
	return a.printTo(a.out, res, text)
}

// done shows the result of what was done: not with --quiet, unless a program asks for it.
func (a *app) done(res any, text func(w io.Writer)) error {
	if a.quiet && !a.json {
		return nil
	}
	return a.print(res, text)
}

func (a *app) printTo(out io.Writer, res any, text func(w io.Writer)) error {
	if a.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(res)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	text(w)
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, shownBut(b.String(), "\n"))
	return err
}

// confirm asks before something is deleted.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !term.IsTerminal(int(a.in.Fd())) {
		return usage(errors.New("nobody is there to confirm"), "add -y, or look first with -n")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	var answer string
	if _, err := fmt.Fscanln(a.in, &answer); err != nil && err.Error() != "unexpected newline" {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer != "y" && answer != "Y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}
