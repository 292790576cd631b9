// Command benchencrypt compares an encrypted store with a plain one, in one run, on a real CRIU dump, and prints a
// Markdown table with a verdict for each figure.
//
// A workload process fills its memory and is dumped to a plain directory while it runs on. Then, -n times over, a fresh
// plain store and a fresh encrypted one take turns, and who begins changes from round to round:
//
//	import    the images, which are in the page cache, into the store
//	verify    every byte of it
//	dump      criu dumps the process into another fresh store, until the checkpoint is sealed; it runs on
//	cold read the pages image through the mount of a daemon just started, with the page cache dropped
//	resume    gpucr-fs restore with a profile, from the command until the process runs; with the store in the page
//	          cache, and with the page cache dropped
//	resident  the same, until all its memory is there
//	open      a command that only opens an empty store, which holds whatever a key costs each time
//
// Figures are seconds, but for what the store occupies on the disk. The ratio is that of the medians. Rows with "CPU"
// tell the processor time of the command, of what it runs and of the daemon: other work on the machine changes it less.
// For restores it is that until all memory is there, without the guardian's, which does the same for both stores. The
// encrypted store is opened with an age identity; a passphrase is made slow to try, a second each time a store is
// opened. In the first round the process checks all its memory after each restore.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gpucr/gpucr-fs/index/keyring/keyringtest"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

type options struct {
	memMB, rounds    int
	jsonOut          bool
	dir, gpucr, criu string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("benchencrypt", flag.ContinueOnError)
	f.IntVar(&o.memMB, "mem", 1024, "memory of the process, MiB")
	f.IntVar(&o.rounds, "n", 5, "rounds; the median counts")
	f.BoolVar(&o.jsonOut, "json", false, "print JSON instead of a table")
	f.StringVar(&o.dir, "dir", "", "folder for images and stores (default: a temporary one)")
	f.StringVar(&o.gpucr, "gpucr", "bin/gpucr-fs", "the program to measure")
	f.StringVar(&o.criu, "criu", os.Getenv("CRIU"), "criu 4.2 or newer (default $CRIU, else build/criu/criu)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.memMB < 16 || o.rounds < 1 {
		return o, errors.New("the process needs 16 MiB, and there is a round to run at least")
	}
	return o, measure.Programs(&o.gpucr, &o.criu)
}

func main() { measure.Main("benchencrypt", run) }

// bench is one run.
type bench struct {
	options
	ctx       context.Context
	gpucr     cli.Program
	process   *workload.Process
	images    string
	recipient string
	results   *results
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "gpucr-benchencrypt")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	b := &bench{options: o, ctx: ctx, gpucr: cli.Program(o.gpucr), images: filepath.Join(dir, "images"),
		results: &results{Samples: map[string]map[side][]float64{}}}
	if b.results.Machine, err = measure.Describe(); err != nil {
		return err
	}
	if err := b.makeKey(); err != nil {
		return err
	}
	if err := b.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.process.Kill()) }()
	if err := b.measure(); err != nil {
		return err
	}
	b.results.judge()
	if o.jsonOut {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(b.results)
	}
	b.results.print(os.Stdout)
	return nil
}

// makeKey makes an age identity, with which every command opens an encrypted store.
func (b *bench) makeKey() error {
	identity, recipient, err := keyringtest.Make()
	if err != nil {
		return err
	}
	file := filepath.Join(b.dir, "identity")
	b.recipient = recipient
	return errors.Join(os.WriteFile(file, []byte(identity+"\n"), 0o600), os.Setenv("GPUCR_FS_IDENTITY", file))
}

// start starts the process and dumps it to the images.
func (b *bench) start() error {
	bin, err := workload.Build(b.dir)
	if err != nil {
		return err
	}
	say("starting a process of %d MiB, dumping it", b.memMB)
	b.process, err = workload.Start(bin, b.dir, "--mem", strconv.Itoa(b.memMB), "--child-mem",
		strconv.Itoa(max(2, b.memMB/60)), "--check-rate", "100")
	if err != nil {
		return err
	}
	err = os.Mkdir(b.images, 0o755)
	if err == nil {
		err = b.criuDump()
	}
	if err != nil {
		return errors.Join(err, b.process.Kill())
	}
	return nil
}

// say tells a person who waits what is going on.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
