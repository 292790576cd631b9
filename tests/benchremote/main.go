// Command benchremote compares, in one run, how soon a process runs again, answers again and has all its memory again
// on a machine that has nothing of it, when its checkpoint lies in a bucket: copied by rclone, or mounted by desync
// where that is given, and restored by criu; and restored by gpucr-fs, for the first time, with the profile that came
// with the checkpoint, and with what an earlier restore has left in the node's cache. Beside them stands the restore
// from a store that has all of it.
//
// The bucket is served by versitygw on this machine, behind a link (tests/slowlink) of -delay to the first byte,
// -connection bytes a second on each connection and -all on all of them. Process, hot set and what is measured are
// those of benchrestore. What came over the link is counted there until all memory is resident; of the restores by
// gpucr-fs this includes all that pulling the checkpoint asks for.
//
// It also measures what is written: until a dump is sealed, with a bucket and without, and until it is durable; and
// what a second process of the same model sends from another machine, beside what it adds to a store.
//
// Server, link and who restores share the processors of the machine. A line "link alone" tells what is left then: one
// client that reads the bucket's objects over connections of its own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/s3server"
	"github.com/gpucr/gpucr-fs/tests/slowlink"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

type options struct {
	sizes               []int // MB
	rounds, nearTurns   int
	ways                []string
	rates               slowlink.Rates
	jsonOut             bool
	dir, gpucr, criu    string
	rclone, connections string
	desync              string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("benchremote", flag.ContinueOnError)
	sizes := f.String("size", "256,1024", "memory of the processes, MB")
	f.IntVar(&o.rounds, "n", 3, "rounds; the median counts")
	f.IntVar(&o.nearTurns, "near", 5, "turns of a round in which the ways that fetch nothing are measured")
	names := f.String("ways", strings.Join(wayNames(), ","), "who restores")
	f.DurationVar(&o.rates.Delay, "delay", 10*time.Millisecond, "from a request to the first byte of its answer")
	f.Int64Var(&o.rates.Connection, "connection", 100e6, "bytes a second on each connection")
	f.Int64Var(&o.rates.All, "all", 400e6, "bytes a second on all connections together")
	f.BoolVar(&o.jsonOut, "json", false, "print JSON instead of a table")
	f.StringVar(&o.dir, "dir", "", "folder for images, stores and the bucket (default: a temporary one)")
	f.StringVar(&o.gpucr, "gpucr", "bin/gpucr-fs", "the program to measure")
	f.StringVar(&o.criu, "criu", os.Getenv("CRIU"), "criu 4.2 or newer (default $CRIU, else build/criu/criu)")
	f.StringVar(&o.rclone, "rclone", "rclone", "the program to copy from the bucket with")
	f.StringVar(&o.desync, "desync", os.Getenv("DESYNC"), "desync (default $DESYNC)")
	f.StringVar(&o.connections, "streams", "8", "connections that rclone copies a file over")
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
	o.ways = strings.Split(*names, ",")
	for _, w := range o.ways {
		if !slices.Contains(wayNames(), w) {
			return o, fmt.Errorf("unknown way %q; there are %s", w, strings.Join(wayNames(), ", "))
		}
	}
	if i := slices.Index(o.ways, wayDesync); i >= 0 && o.desync == "" {
		say("desync is not here: give its path in $DESYNC to have it compared")
		o.ways = slices.Delete(o.ways, i, i+1)
	}
	return o, measure.Programs(&o.gpucr, &o.criu)
}

func main() { measure.Main("benchremote", run) }

// bench is one run.
type bench struct {
	options
	ctx     context.Context
	gpucr   cli.Program
	server  *s3server.Server
	link    *slowlink.Link
	results *results

	workload string // the program that writes dump
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "gpucr-benchremote")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	b := &bench{options: o, ctx: ctx, gpucr: cli.Program(o.gpucr), results: &results{Rates: o.rates}}
	if b.results.Machine, err = measure.Describe(); err != nil {
		return err
	}
	bin, err := lazytarget.Build(dir)
	if err != nil {
		return err
	}
	if b.workload, err = workload.Build(dir); err != nil {
		return err
	}
	objects := filepath.Join(dir, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		return err
	}
	if b.server, err = s3server.Run(objects); err != nil {
		return err
	}
	defer b.server.Stop()
	if b.link, err = slowlink.Start(strings.TrimPrefix(b.server.Endpoint, "http://"), o.rates); err != nil {
		return err
	}
	defer b.link.Close()
	os.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	os.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
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
