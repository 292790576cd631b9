// Command benchrestore compares, in one run, how soon a process runs again, answers again and has all its memory again:
// restored by criu as it is, by criu with its own lazy-pages server, and by gpucr-fs, for the first time and with the
// profile of an earlier time.
//
// A process fills its memory, is dumped to a plain directory, and that is imported into a store. Then it is restored -n
// times by each, in turns, with the images in the page cache and without. As soon as it runs, the process goes through
// its hot set, a twentieth of its memory in pieces of 64 KiB spread over all of it, checking every byte. What is
// measured begins with the command that restores (servers and mounts are there already, freshly started) and ends with
//
//	resume      the command is back: the process runs
//	response    the process has passed its hot set
//	resident    all memory is there
//
// Every figure is a median. Right before each of them, more memory than it needs is touched and freed, since memory
// that a virtual machine has to get from its host first is several times slower, and would count against whoever is
// measured after a pause. In the first round of each size the process checks all of its memory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

type options struct {
	sizes            []int // MB
	rounds           int
	states, ways     []string
	cacheSize        int // MB
	jsonOut          bool
	dir, gpucr, criu string
}

const (
	warm = "warm"
	cold = "cold"
)

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("benchrestore", flag.ContinueOnError)
	sizes := f.String("sizes", "256,1024,4096", "memory of the processes, MB")
	f.IntVar(&o.rounds, "n", 5, "rounds; the median counts")
	onlyWarm := f.Bool("warm", false, "only with the images in the page cache")
	onlyCold := f.Bool("cold", false, "only with the page cache empty")
	names := f.String("ways", strings.Join(wayNames(), ","), "who restores")
	f.IntVar(&o.cacheSize, "cache-size", 128, "the daemon's --cache-size, MB")
	f.BoolVar(&o.jsonOut, "json", false, "print JSON instead of a table")
	f.StringVar(&o.dir, "dir", "", "folder for images and stores (default: a temporary one)")
	f.StringVar(&o.gpucr, "gpucr", "bin/gpucr-fs", "the program to measure")
	f.StringVar(&o.criu, "criu", os.Getenv("CRIU"), "criu 4.2 or newer (default $CRIU, else build/criu/criu)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 16 {
			return o, fmt.Errorf("size %q is not a number of megabytes from 16 on", s)
		}
		o.sizes = append(o.sizes, n)
	}
	o.states = []string{warm, cold}
	switch {
	case *onlyWarm && !*onlyCold:
		o.states = o.states[:1]
	case *onlyCold && !*onlyWarm:
		o.states = o.states[1:]
	}
	o.ways = strings.Split(*names, ",")
	for _, w := range o.ways {
		if !slices.Contains(wayNames(), w) {
			return o, fmt.Errorf("unknown way %q; there are %s", w, strings.Join(wayNames(), ", "))
		}
	}
	return o, measure.Programs(&o.gpucr, &o.criu)
}

func main() { measure.Main("benchrestore", run) }

// bench is one run.
type bench struct {
	options
	ctx     context.Context
	gpucr   cli.Program
	results *results
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "gpucr-benchrestore")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	b := &bench{options: o, ctx: ctx, gpucr: cli.Program(o.gpucr),
		results: &results{CacheSize: int64(o.cacheSize) << 20}}
	if b.results.Machine, err = measure.Describe(); err != nil {
		return err
	}
	bin, err := lazytarget.Build(dir)
	if err != nil {
		return err
	}
	for _, mb := range o.sizes {
		if err := b.size(bin, mb); err != nil {
			return fmt.Errorf("%d MB: %w", mb, err)
		}
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

// say tells a person who waits what is going on.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
